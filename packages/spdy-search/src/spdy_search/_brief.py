"""Short forms of long values, for the reprs of results."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SHOWN = 8  # levels shown of an assignment with more than LONGEST
LONGEST = 12  # levels of an assignment that is shown as a whole


def brief_levels(levels: Sequence[int] | NDArray[np.int64]) -> str:
    """An assignment as text; of many levels, the first ones and their number.

    Example:
        >>> brief_levels(range(40))
        '[0, 1, 2, 3, 4, 5, 6, 7, ... 40 levels]'
    """
    shown = [str(level) for level in levels[: LONGEST if len(levels) <= LONGEST else SHOWN]]
    if len(levels) > LONGEST:
        shown.append(f"... {len(levels)} levels")
    return f"[{', '.join(shown)}]"

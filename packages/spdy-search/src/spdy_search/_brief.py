"""Short forms of long values, for the reprs of results."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SHOWN = 8  # number of levels shown of an assignment with more than LONGEST
LONGEST = 12  # assignments of up to this many levels are shown in full


def brief_levels(levels: Sequence[int] | NDArray[np.int64]) -> str:
    """Format an assignment as text; if it is long, as its first levels and the number of all levels.

    Example:
        >>> brief_levels(range(40))
        '[0, 1, 2, 3, 4, 5, 6, 7, ... 40 levels]'
    """
    shown = [str(level) for level in levels[: LONGEST if len(levels) <= LONGEST else SHOWN]]
    if len(levels) > LONGEST:
        shown.append(f"... {len(levels)} levels")
    return f"[{', '.join(shown)}]"

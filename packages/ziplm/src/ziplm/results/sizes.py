"""The sizes of branches in reports: a number of groups, or a list of the number of heads and their width."""

import math
from collections.abc import Mapping, Sequence
from typing import Any


def sizes_text(sizes: Mapping[str, Sequence[int | list[int]]]) -> str:
    """Format the heads and width of each layer as ``12/1536 3/302 –/33``; a dash is a removed branch.

    Heads that may be narrower are shown with their width: ``8×24/1536``.
    """
    layers = zip(*sizes.values(), strict=True)
    return " ".join("/".join(size_text(size, "–") for size in layer) for layer in layers)


def size_text(size: int | list[int], removed: str = "0") -> str:
    """Format a size: a number of groups, or heads and their width as ``8×24``."""
    groups = size[0] if isinstance(size, list) else size
    if not groups:
        return removed
    return "×".join(map(str, size)) if isinstance(size, list) else str(size)


def groups_of(size: Any) -> float:
    """Return a size as one number; heads and their width are multiplied."""
    return float(math.prod(size) if isinstance(size, list) else size)

"""Tables of the results of bench/oneshot.py."""

import statistics
from typing import Any

from harness import print_table
from models import BUILD
from ziplm.files import read_json


def report(name: str) -> None:
    """Print means over the seeds, and the difference between the default and each other method."""
    rows = [read_json(path) for path in sorted((BUILD / "oneshot" / name).glob("seed*/rows/*.json"))]
    targets = sorted({row["target"] for row in rows})
    figures = sorted({key for row in rows for key in row if key.endswith((" metric", " kl"))})
    seeds = len({row["seed"] for row in rows})
    headings = ["", *(f"{target:g}x" for target in targets)]
    for figure in figures:
        lines = []
        for method in dict.fromkeys(row["method"] for row in rows):
            cells = [_mean(rows, method, target, figure) for target in targets]
            if any(cells):
                lines.append([method, *cells])
        print_table(f"{name}: {figure}, mean of {seeds} seeds", headings, lines)
    for figure in figures:
        lines = []
        for other in dict.fromkeys(row["method"] for row in rows if row["method"] != "default"):
            cells = [_differences(rows, other, target, figure) for target in targets]
            if any(cells):
                lines.append([str(other), *cells])
        if lines:
            print_table(f"default minus other, for each seed: {figure}", headings, lines)
        if lines and figure.endswith(" kl"):
            shares = [
                [line[0], *(_differences(rows, line[0], target, figure, share=True) for target in targets)]
                for line in lines
            ]
            print_table(f"the same as a share of the other: {figure}", headings, shares)


def _values(rows: list[dict[str, Any]], method: str, target: float, figure: str) -> dict[int, float]:
    """Return a method's results at a target by seed."""
    return {
        row["seed"]: row[figure]
        for row in rows
        if (row["method"], row["target"]) == (method, target) and figure in row
    }


def _mean(rows: list[dict[str, Any]], method: str, target: float, figure: str) -> str:
    """Format the mean over the seeds with the standard deviation."""
    found = list(_values(rows, method, target, figure).values())
    spread = f" ±{statistics.stdev(found):.3f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.4f}{spread}" if found else ""


def _differences(
    rows: list[dict[str, Any]], other: str, target: float, figure: str, share: bool = False
) -> str:
    """Format the default's result minus that of another method, or this as a share of it, seed by seed."""
    default = _values(rows, "default", target, figure)
    found = {seed: value for seed, value in _values(rows, other, target, figure).items() if seed in default}
    if share:
        return " ".join(f"{default[seed] / value - 1:+.0%}" for seed, value in found.items())
    return " ".join(f"{default[seed] - value:+.4f}" for seed, value in found.items())

"""What a run comes to, as a table."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table


def family_table(family: Sequence[dict[str, Any]]) -> Table:
    """One row for each target, from its metrics.json."""
    table = Table()
    metric = family[0]["metric"]["name"] if family else "metric"
    for heading in ("target", "measured", f"{metric}: dense", "compressed", "layer parameters", "on disk"):
        table.add_column(heading, justify="right")
    table.add_column("heads and width kept, layer by layer", overflow="fold")
    for member in family:
        left, dense = member["parameters"]["layers"], member["dense_parameters"]["layers"]
        table.add_row(
            member["target"]["name"],
            speed_text(member),
            f"{member['metric']['dense']:.4g}",
            f"{member['metric']['compressed']:.4g}",
            f"{left / 1e6:.2f}M ({left / dense:.0%})",
            f"{member['bytes_on_disk'] / 1e6:.0f} MB",
            sizes_text(member["sizes"]),
        )
    return table


def speed_text(member: dict[str, Any]) -> str:
    """The measured speedup and its interval; where nothing was measured, what the table predicts."""
    measured = member["measured"]
    if measured is None:
        return f"{member['predicted']['speedup']:.2f}x predicted"
    text = f"{measured['speedup']:.2f}x [{measured['low']:.2f}, {measured['high']:.2f}]"
    if member["target"]["kind"] == "latency":
        text = f"{measured['seconds'] * 1e3:.2f} ms, {text}"
    return text


def sizes_text(sizes: dict[str, list[int]]) -> str:
    """Such as ``12/1536 3/302 –/33``: heads and width of each layer, a dash where a module is gone."""
    kinds = list(sizes.values())
    return " ".join(
        "/".join(str(size) if size else "–" for size in layer) for layer in zip(*kinds, strict=True)
    )

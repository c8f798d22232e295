"""The table of a family."""

from typing import Any

from rich.console import Console
from rich.table import Table

from ziplm.results.family import Family, family_text


def print_family(family: Family, console: Console) -> None:
    """Print one row for each member; below, the sizes of its layers, its folder, and what the family took."""
    table = Table()
    metric = family[0].metrics["metric"]["name"] if family else "metric"
    for heading in ("target", "speed", f"dense {metric}", "now", "layers' parameters", "disk"):
        table.add_column(heading, justify="right", no_wrap=heading in ("target", "speed"))
    for member in family:
        metrics = member.metrics
        left, dense = metrics["parameters"]["layers"], metrics["dense_parameters"]["layers"]
        table.add_row(
            member.target,
            speed_text(metrics),
            f"{metrics['metric']['dense']:.4g}",
            f"{metrics['metric']['compressed']:.4g}",
            f"{left / 1e6:.2f}M ({left / dense:.0%})",
            f"{metrics['bytes_on_disk'] / 1e6:.0f} MB",
        )
    console.print(table)
    console.print(
        "heads/width kept in each layer (– where a branch is removed), and the folder of each model:"
    )
    for member in family:
        line = f"  {member.target}: {sizes_text(member.sizes)}  {member.folder}"
        console.print(line, markup=False, soft_wrap=True)
    if family and (took := family_text(family[0].folder.parent)):
        console.print(took, markup=False, soft_wrap=True)


def speed_text(metrics: dict[str, Any]) -> str:
    """Format the measured speedup with its interval, or the predicted one if nothing was measured."""
    measured = metrics["measured"]
    if measured is None:
        return f"~{metrics['predicted']['speedup']:.2f}x predicted"
    text = f"{measured['speedup']:.2f}x [{measured['low']:.2f}, {measured['high']:.2f}]"
    if metrics["target"]["kind"] == "latency":
        text = f"{measured['seconds'] * 1e3:.2f} ms, {text}"
    return text


def sizes_text(sizes: dict[str, list[int]]) -> str:
    """Format the heads and width of each layer as ``12/1536 3/302 –/33``; a dash is a removed branch."""
    layers = zip(*sizes.values(), strict=True)
    return " ".join("/".join(str(size) if size else "–" for size in layer) for layer in layers)

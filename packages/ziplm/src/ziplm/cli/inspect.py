"""``ziplm inspect``: the sizes of a model."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rich_click as click


@click.command(epilog="Example: ziplm inspect runs/sst2/2x")
@click.argument("checkpoint")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(checkpoint: str, as_json: bool) -> None:
    """Show the sizes of each layer of CHECKPOINT, its parameters and its size on disk.

    CHECKPOINT is a folder or a name on the hub. Weights are not loaded.
    """
    from rich.console import Console

    from ziplm.architectures.inspection import inspect as inspect_checkpoint
    from ziplm.architectures.inspection import size_on_disk

    found = inspect_checkpoint(checkpoint)
    disk = size_on_disk(Path(checkpoint)) if Path(checkpoint).is_dir() else None
    if as_json:
        click.echo(json.dumps({**asdict(found), "bytes_on_disk": disk}, indent=1))
        return
    console = Console(highlight=False)
    console.print(_table(found, checkpoint))
    console.print(f"{found.parameters:,} parameters with embeddings and head")
    if disk is not None:
        console.print(f"{disk / 1e6:,.1f} MB of weights on disk")


def _table(found: Any, checkpoint: str) -> Any:
    from rich.table import Table

    table = Table(title=f"{found.model_class} in {checkpoint}", title_justify="left")
    for heading in ("layer", "heads", "width", "parameters", "of dense"):
        table.add_column(heading, justify="right")
    for index, (heads, width) in enumerate(zip(found.heads, found.widths, strict=True)):
        parameters, head_width = found.layer_parameters[index], found.head_widths[index]
        is_narrow = head_width < found.dense_head_width
        of_heads = f" of width {head_width}/{found.dense_head_width}" if is_narrow else ""
        table.add_row(
            str(index),
            f"{heads}/{found.dense_heads}{of_heads}" if heads else "removed",
            f"{width}/{found.dense_width}" if width else "removed",
            f"{parameters:,}",
            f"{parameters / found.dense_layer_parameters:.0%}",
        )
    left, dense = sum(found.layer_parameters), len(found.heads) * found.dense_layer_parameters
    table.add_section()
    table.add_row("all", f"{sum(found.heads)}", f"{sum(found.widths)}", f"{left:,}", f"{left / dense:.0%}")
    return table

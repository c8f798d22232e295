"""``ziplm inspect``: the sizes of a model."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from ziplm.architectures.inspection import inspect as inspect_checkpoint
from ziplm.architectures.inspection import size_on_disk


@click.command(epilog="Example: ziplm inspect runs/sst2/2x")
@click.argument("checkpoint")
def inspect(checkpoint: str) -> None:
    """Show the sizes of each layer of CHECKPOINT, its parameters and its size on disk.

    CHECKPOINT is a folder or a name on the hub. Weights are not loaded.
    """
    found = inspect_checkpoint(checkpoint)
    console = Console(highlight=False)
    table = Table(title=f"{found.model_class} in {checkpoint}", title_justify="left")
    for heading in ("layer", "heads", "width", "parameters", "of dense"):
        table.add_column(heading, justify="right")
    for index, (heads, width) in enumerate(zip(found.heads, found.widths, strict=True)):
        parameters = found.layer_parameters[index]
        table.add_row(
            str(index),
            f"{heads}/{found.dense_heads}" if heads else "removed",
            f"{width}/{found.dense_width}" if width else "removed",
            f"{parameters:,}",
            f"{parameters / found.dense_layer_parameters:.0%}",
        )
    left, dense = sum(found.layer_parameters), len(found.heads) * found.dense_layer_parameters
    table.add_section()
    table.add_row("all", f"{sum(found.heads)}", f"{sum(found.widths)}", f"{left:,}", f"{left / dense:.0%}")
    console.print(table)
    console.print(f"{found.parameters:,} parameters with embeddings and head")
    if Path(checkpoint).is_dir():
        console.print(f"{size_on_disk(Path(checkpoint)) / 1e6:,.1f} MB of weights on disk")

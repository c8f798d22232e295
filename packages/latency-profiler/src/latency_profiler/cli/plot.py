"""``latency-profiler plot``: a figure of one or several tables."""

from pathlib import Path

import click

from latency_profiler._plot import draw
from latency_profiler.cli.show import load_all, table_files


@click.command(epilog="Example: latency-profiler plot bert-base.json -o latency.png")
@table_files
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("latency.png"),
    show_default=True,
    help="A .png, .svg or .pdf file.",
)
def plot(tables: tuple[Path, ...], output: Path) -> None:
    """Draw time and speedup against size: one column per kind of module, one line per table."""
    draw(load_all(tables), output)
    click.echo(f"saved {output}")

"""``latency-profiler plot``: draw one or several tables."""

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
    help="Output file: .png, .svg or .pdf.",
)
def plot(tables: tuple[Path, ...], output: Path) -> None:
    """Plot time and speedup against size.

    The figure has one column per kind of module and one line per table.
    """
    draw(load_all(tables), output)
    click.echo(f"saved {output}")

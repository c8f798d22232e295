"""``ziplm plot``: figures of a run."""

from pathlib import Path

import click
from rich.console import Console

from ziplm.plot import plot_run


@click.command(epilog="Example: ziplm plot runs/sst2 --format svg")
@click.argument("run", type=Path)
@click.option("-o", "--output", type=Path, metavar="FOLDER", help="[default: RUN/figures]")
@click.option("--format", "suffix", default="png", show_default=True, type=click.Choice(["png", "svg"]))
def plot(run: Path, output: Path | None, suffix: str) -> None:
    """Draw RUN: metric and speedup, what each layer keeps, latency curves, progress of the search."""
    for path in plot_run(run, output, suffix):
        Console(highlight=False).print(str(path), markup=False, soft_wrap=True)

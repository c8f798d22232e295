"""``ziplm plot``: figures of a run."""

from pathlib import Path

import click
from rich.console import Console

from ziplm.results.figures import plot_run, read_reports
from ziplm.results.scaling import fit_metric


@click.command(epilog="Example: ziplm plot runs/sst2 --format svg")
@click.argument("run", type=Path)
@click.option("-o", "--output", type=Path, metavar="FOLDER", help="[default: RUN/figures]")
@click.option("--format", "suffix", default="png", show_default=True, type=click.Choice(["png", "svg"]))
def plot(run: Path, output: Path | None, suffix: str) -> None:
    """Draw figures of RUN: metric and speedup, sizes of each layer, latency curves, progress of the search.

    With at least three targets, also print the line that best fits the metric to the speedup.
    """
    console = Console(highlight=False)
    for path in plot_run(run, output, suffix):
        console.print(str(path), markup=False, soft_wrap=True)
    if fit := fit_metric(read_reports(run)):
        console.print(str(fit), markup=False, soft_wrap=True)

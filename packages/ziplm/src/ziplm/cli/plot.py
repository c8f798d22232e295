"""``ziplm plot``: figures of a run."""

from pathlib import Path

import rich_click as click


@click.command(epilog="Example: ziplm plot runs/sst2 --format svg")
@click.argument("run", type=Path)
@click.option(
    "-o", "--output", type=Path, metavar="FOLDER", help="Folder for the figures.  [default: RUN/figures]"
)
@click.option(
    "--format",
    "suffix",
    default="png",
    show_default=True,
    type=click.Choice(["png", "svg"]),
    help="Format of the figures.",
)
def plot(run: Path, output: Path | None, suffix: str) -> None:
    """Draw figures of RUN: metric and speedup, sizes of each layer, latency curves, progress of the search.

    With at least three targets, also print the line that best fits the metric to the speedup.
    """
    from ziplm.results.figures import plot_run, read_reports
    from ziplm.results.scaling import fit_metric

    reports = read_reports(run)  # fails if there is no such run, before matplotlib is needed
    for path in plot_run(run, output, suffix):
        click.echo(str(path))
    if fit := fit_metric(reports):
        click.echo(str(fit))

"""``ziplm plot``: figures of a run as files."""

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
    type=click.Choice(["png", "svg", "pdf"]),
    help="Format of the figures.",
)
def plot(run: Path, output: Path | None, suffix: str) -> None:
    """Draw the figures of RUN's report as files for papers and slides.

    They show the metric against the speedup, targets against measurements, what is kept of each layer, the
    latency curves, the searches and the trainings. They are readable when they are printed in grey. With at
    least three targets, the line that best fits the metric to the speedup is drawn and printed. Needs
    pip install "ziplm[report]".
    """
    from ziplm.results.figures import plot_run
    from ziplm.results.run_data import read_reports
    from ziplm.results.scaling import fit_metric

    for path in plot_run(run, output, suffix):
        click.echo(str(path))
    if fit := fit_metric(read_reports(run)):
        click.echo(str(fit))

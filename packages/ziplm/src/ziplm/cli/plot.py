"""``ziplm plot``: figures of runs as files."""

from pathlib import Path

import rich_click as click


@click.command(epilog="Example: ziplm plot runs/sst2 --format svg")
@click.argument("runs", type=Path, nargs=-1, required=True, metavar="RUN …")
@click.option(
    "-o",
    "--output",
    type=Path,
    metavar="FOLDER",
    help="Folder for the figures.  [default: RUN/figures, or figures for several runs]",
)
@click.option(
    "--format",
    "suffix",
    default="png",
    show_default=True,
    type=click.Choice(["png", "svg", "pdf"]),
    help="Format of the figures.",
)
def plot(runs: tuple[Path, ...], output: Path | None, suffix: str) -> None:
    """Draw the figures of RUN's report as files for papers and slides; several runs share their axes.

    They show the metric against the speedup, targets against measurements, what is kept of each layer, the
    latency curves, the searches and the trainings. They are readable when they are printed in grey. With at
    least three targets, the line that best fits the metric to the speedup is printed, and drawn for a single
    run. Needs pip install "ziplm[report]".
    """
    from ziplm.results.figures import plot_runs
    from ziplm.results.run_data import read_reports, require_different
    from ziplm.results.scaling import fit_metric

    require_different(runs)
    for path in plot_runs(runs, output, suffix):
        click.echo(str(path))
    for run in runs:
        if fit := fit_metric(read_reports(run)):
            click.echo(str(fit) if len(runs) == 1 else f"{run}: {fit}")

"""``ziplm compare``: a page about several runs."""

from pathlib import Path

import rich_click as click


@click.command(epilog="Example: ziplm compare runs/oneshot runs/gradual -o compare.html")
@click.argument("runs", type=Path, nargs=-1, required=True, metavar="RUN RUN …")
@click.option(
    "-o",
    "--output",
    type=Path,
    metavar="FILE",
    default=Path("compare.html"),
    show_default=True,
    help="HTML file to write.",
)
def compare(runs: tuple[Path, ...], output: Path) -> None:
    """Write a page that compares several runs, to look at in a browser.

    It shows the figures and tables of `ziplm report` with all runs in them, and marks the settings in which
    they differ. Speedups refer to the dense model of each run, in the run's own environment. Needs
    pip install "ziplm[report]".
    """
    from ziplm.options.values import require
    from ziplm.results.report_page import write_report
    from ziplm.results.run_data import require_different

    require(len(runs) > 1, "there is only one run to compare", "give two or more, or use `ziplm report`")
    require_different(runs)
    write_report(runs, output)
    click.echo(str(output))

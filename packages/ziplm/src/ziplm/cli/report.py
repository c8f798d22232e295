"""``ziplm report``: a page about a run, to look at in a browser."""

from pathlib import Path

import rich_click as click


@click.command(epilog="Example: ziplm report runs/sst2")
@click.argument("run", type=Path)
@click.option(
    "-o", "--output", type=Path, metavar="FILE", help="HTML file to write.  [default: RUN/report.html]"
)
def report(run: Path, output: Path | None) -> None:
    """Write a page about RUN that any browser shows, without a network.

    It shows the metric against the measured speedup, each target against its measurement, what is kept of
    each layer, the latency curves, the searches and trainings, and how to repeat the run. It needs
    pip install "ziplm[report]".
    """
    from ziplm.results.report_page import write_report

    output = output or run / "report.html"
    write_report([run], output)
    click.echo(str(output))


def report_line(run: Path) -> str:
    """Write the report at the end of a run, and return a line that says where it is, or why there is none.

    The models are finished by then, so that no failure here may fail the run.
    """
    from ziplm.errors import MissingExtra, one_line
    from ziplm.results.report_page import HELP, write_report

    try:
        write_report([run], run / "report.html")
    except MissingExtra:
        return f"no report was written; for one, {HELP}, then: ziplm report {run}"
    except Exception as error:
        return f"no report was written: {one_line(error)}; try: ziplm report {run}"
    return f"report: {run / 'report.html'}"

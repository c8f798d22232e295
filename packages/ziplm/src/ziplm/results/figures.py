"""Figures of runs as files, for papers and slides: the charts of the report, in the light theme."""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ziplm.files import written_whole
from ziplm.results.chart import Chart, Spec, theme
from ziplm.results.chart_of_quality import labelled_name, quality_chart
from ziplm.results.charts_of_family import deviation_chart, sizes_chart
from ziplm.results.charts_of_making import latency_charts, search_chart, training_charts
from ziplm.results.report_page import require_extra
from ziplm.results.rows import quality_rows, size_rows
from ziplm.results.run_data import RunData, read_runs

WIDTH = 520
"""Width of the plot in pixels of 1/72 inch, without axis titles."""
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
FORMATS = ("png", "svg", "pdf")
DOTS_PER_INCH = 220
LETTERS_PER_LINE = 88


def plot_runs(folders: Sequence[Path], output: Path | None = None, suffix: str = "png") -> list[Path]:
    """Draw all figures of a run, or of several in the same axes.

    Args:
        folders: the run folders.
        output: folder for the files; None for `figures` in the folder of a single run, or for several runs in
            the current folder.
        suffix: one of `FORMATS`.

    Returns:
        The files.

    Raises:
        BadRun: if a run has no finished target.
        MissingExtra: if a package that draws figures is missing.
    """
    runs = read_runs(folders)
    require_extra()
    output = output or Path(*(folders if len(folders) == 1 else ()), "figures")
    files = []
    for chart in charts_of(runs):
        path = output / f"{chart.name}.{suffix}"
        with written_whole(path) as temporary:
            temporary.write_bytes(draw(chart, runs, suffix))
        files.append(path)
    return files


def charts_of(runs: Sequence[RunData]) -> list[Chart]:
    """Return all charts that the runs have values for."""
    kinds = list(dict.fromkeys(row["kind"] for row in size_rows(runs)))
    found: list[Chart | None] = [
        quality_chart(runs),
        deviation_chart(runs),
        *(sizes_chart(runs, kind) for kind in kinds),
        *latency_charts(runs),
        search_chart(runs),
        *training_charts(runs),
    ]
    return [chart for chart in found if chart is not None]


def draw(chart: Chart, runs: Sequence[RunData], suffix: str) -> bytes:
    """Draw a chart as a file, with the names of the models and the tasks in its title."""
    import vl_convert

    spec = figure_spec(chart, _names(runs), _key(chart, runs))
    settings: dict[str, Any] = {"config": theme(font=FONT), "allowed_base_urls": []}
    drawn: dict[str, Callable[[], bytes]] = {
        "png": lambda: vl_convert.vegalite_to_png(spec, ppi=DOTS_PER_INCH, **settings),
        "svg": lambda: vl_convert.vegalite_to_svg(spec, **settings).encode(),
        "pdf": lambda: vl_convert.vegalite_to_pdf(spec, **settings),
    }
    return drawn[suffix]()


def _names(runs: Sequence[RunData]) -> list[str]:
    """Return a line with the model and the task for each run."""
    if len(runs) == 1:
        return [f"{runs[0].model}, {runs[0].options.get('task') or runs[0].label}"]
    return [f"{run.label}: {run.model}, {run.options.get('task') or 'unknown task'}" for run in runs]


def _key(chart: Chart, runs: Sequence[RunData]) -> list[str]:
    """Return a note that says what the letters in the chart of quality stand for."""
    names = [
        f"{labelled_name(row)} ({row['run']})" if len(runs) > 1 else labelled_name(row)
        for row in quality_rows(runs)
        if row["label"] != row["name"]
    ]
    return [f"{'; '.join(names)}."] if names and chart.name == "quality" else []


def figure_spec(chart: Chart, before: Sequence[str] = (), after: Sequence[str] = ()) -> Spec:
    """Return the specification of a figure that stands alone: with a title, notes and a white background."""
    notes = textwrap.wrap(" ".join([*chart.notes, *after]), LETTERS_PER_LINE)
    title = {"text": textwrap.wrap(chart.title, LETTERS_PER_LINE - 16), "subtitle": [*before, *notes]}
    return {**chart.spec, "width": WIDTH, "background": "white", "padding": 8, "title": title}

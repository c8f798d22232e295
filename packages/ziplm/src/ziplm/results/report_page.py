"""The report of a run, or of several: one HTML file that needs no network.

The page holds everything: text and tables as HTML, the charts as Vega-Lite specifications, and the library
that draws them. All text from files is escaped, because the name of a model or a label may come from anyone.
"""

import functools
import importlib.util
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ziplm.errors import MissingExtra, UsageError
from ziplm.files import written_whole
from ziplm.results.chart import Chart, theme
from ziplm.results.chart_of_quality import quality_chart
from ziplm.results.charts_of_family import deviation_chart
from ziplm.results.charts_of_making import latency_charts, search_chart, training_charts
from ziplm.results.family_tables import (
    alternative_rows,
    as_text,
    family_table,
    structure_sentences,
    structures,
)
from ziplm.results.rows import WIDTHS, member_key
from ziplm.results.run_data import RunData, read_runs
from ziplm.results.summary import best_member, caveats, commands, headline, settings, stage_times

GENERATOR = "ziplm report"
"""Content of the page's generator tag, by which an older report is recognised."""
EXTRA = {"jinja2": "Jinja2", "vl_convert": "vl-convert-python"}
HELP = 'run: pip install "ziplm[report]"'


def require_extra() -> None:
    """Raise MissingExtra unless the packages that draw reports and figures are installed."""
    for module, package in EXTRA.items():
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(f"reports and figures need {package}, which is not installed", HELP)


def write_report(folders: Sequence[Path], output: Path) -> None:
    """Write the report of one run, or the comparison of several.

    Args:
        folders: the run folders.
        output: the HTML file. An older report is replaced; any other file is not.

    Raises:
        BadRun: if a run has no finished target, or is damaged.
        MissingExtra: if a package that draws reports is missing.
        UsageError: if the output exists and is not a report.
    """
    runs = read_runs(folders)
    require_extra()
    _refuse_other_file(output)
    page = render(runs)
    with written_whole(output) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _refuse_other_file(output: Path) -> None:
    if output.is_dir():
        raise UsageError(f"{output} is a folder", "give the name of a file, such as report.html")
    if output.exists():
        with output.open("rb") as file:
            start = file.read(2000)
        if f'content="{GENERATOR}"'.encode() not in start:
            raise UsageError(f"{output} exists and is not a report of ziplm", "choose another --output")


def render(runs: Sequence[RunData]) -> str:
    """Return the page of some runs as HTML."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ziplm.results", "page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "ensure_ascii": False}
    assets = Path(__file__).parent / "page"
    return environment.get_template("report.html").render(
        **page_values(runs),
        generator=GENERATOR,
        style=_safe_asset((assets / "report.css").read_text(encoding="utf-8")),
        script=_safe_asset((assets / "report.js").read_text(encoding="utf-8")),
        library=_safe_asset(_library()),
    )


def page_values(runs: Sequence[RunData]) -> dict[str, Any]:
    """Return everything that the page shows, as plain values."""
    making = [*latency_charts(runs), *_present(search_chart(runs)), *training_charts(runs)]
    groups = {
        "quality": [quality_chart(runs)],
        "target": _present(deviation_chart(runs)),
        "latency": [chart for chart in making if chart.name.startswith("latency")],
        "search": [chart for chart in making if chart.name == "search"],
        "training": [chart for chart in making if chart.name.startswith("training")],
    }
    drawn = [chart for charts in groups.values() for chart in charts]
    first = runs[0]
    title = f"{first.model}, made faster" if len(runs) == 1 else f"{len(runs)} runs compared"
    return {
        "title": title,
        "runs": [
            {
                "label": run.label,
                "model": run.model,
                "task": str(run.options.get("task") or "unknown task"),
                "mode": {"oneshot": "one-shot", "finetune": "fine-tuned", "gradual": "gradual"}.get(
                    run.options.get("mode", ""), ""
                ),
                "headline": headline(run),
                "times": stage_times(run),
                "commands": commands(run),
                "alternatives": alternative_rows(run, runs),
            }
            for run in runs
        ],
        "caveats": caveats(runs),
        "charts": groups,
        "family": family_table(runs),
        "structures": structures(runs),
        "widths": WIDTHS,
        "settings": settings(runs),
        "as_text": as_text,
        "version": version("ziplm"),
        "data": {
            "charts": {chart.name: _for_browser(chart) for chart in drawn},
            "themes": {"light": theme(), "dark": theme(dark=True)},
            "sentences": structure_sentences(runs),
            "chosen": _chosen_at_first(runs),
        },
    }


def _chosen_at_first(runs: Sequence[RunData]) -> str:
    """Return the key of the member that the page highlights when it is opened; empty for several runs."""
    best = best_member(runs[0])[0]
    return member_key(runs[0], best) if best is not None and len(runs) == 1 else ""


def _present(chart: Chart | None) -> list[Chart]:
    return [] if chart is None else [chart]


def _for_browser(chart: Chart) -> dict[str, Any]:
    """Return a specification that is as wide as its place on the page."""
    fit = {"type": "fit-x", "contains": "padding"}
    return {**chart.spec, "width": "container", "autosize": fit}


@functools.cache
def _library() -> str:
    """Return the JavaScript of Vega, Vega-Lite and Vega-Embed, from the installed package."""
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _safe_asset(text: str) -> Any:
    """Mark a style or a script of ours, or of the library, as one that may stand in the page unescaped."""
    from markupsafe import Markup

    if re.search(r"</(script|style)|<!--", text, re.IGNORECASE):
        raise AssertionError("a script or style must not contain a closing tag or a comment of HTML")
    return Markup(text)  # never contains anything from a run

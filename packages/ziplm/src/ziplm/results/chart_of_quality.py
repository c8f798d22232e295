"""The chart of quality against speed, which is what users decide by."""

from collections.abc import Sequence
from itertools import pairwise

from ziplm.results.chart import (
    CHOSEN,
    NARROW,
    Chart,
    Spec,
    colour_by,
    cut_axis_title,
    interval_bar,
    make_chart,
    padded_domain,
    shape_by,
)
from ziplm.results.rows import (
    RECOVERY,
    Row,
    is_greater_better,
    quality_rows,
    recovery_line,
)
from ziplm.results.run_data import RunData
from ziplm.results.scaling import LinearFit, fit_metric
from ziplm.results.texts import interval_text

KINDS = ("compressed", "dense model", "alternative")
SHARE = f"{100 * RECOVERY:g} %"
LARGEST_LINEAR = 8.0  # speedups beyond this are drawn on a logarithmic axis


def quality_chart(runs: Sequence[RunData]) -> Chart:
    """Draw the metric against the speedup, with the dense model at 1x and the line of 99 %."""
    rows = quality_rows(runs)
    same_metric = len({run.metric for run in runs}) == 1
    lines = [{"run": run.label, "line": recovery_line(run.reports[0]["metric"])} for run in runs]
    metric = runs[0].metric
    if not same_metric:
        metric = "share of the dense model's metric, %"
        rows = [_as_share(row, next(run for run in runs if run.label == row["run"])) for row in rows]
        lines = [{"run": runs[0].label, "line": 100 * RECOVERY}]
    x_axis = _speedup_axis(rows)
    domain = padded_domain(
        [row[end] for row in rows for end in ("value", "value_low", "value_high")]
        + [line["line"] for line in lines]
    )
    y_axis: Spec = {
        "type": "quantitative",
        "title": cut_axis_title(metric, domain),
        "scale": {"domain": domain, "nice": True, "zero": False},
    }
    several = len(runs) > 1
    fit = None if several else fit_metric(runs[0].reports)
    labels = [run.label for run in runs]
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]
    colour = colour_by("run", labels) if several else colour_by("kind", kinds)
    at: Spec = {"x": {"field": "speedup", **x_axis}, "y": {"field": "value", **y_axis}}
    up_is_better = not same_metric or all(is_greater_better(run.reports[0]["metric"]) for run in runs)
    layers: list[Spec] = [
        *_line_of_recovery(lines, rows, at, colour_by("run", labels) if several else None),
        *([_fitted_line(fit, rows, at)] if fit else []),
        {
            "transform": [{"filter": "datum.kind !== 'alternative'"}],
            "mark": {"type": "line", "strokeWidth": 1.5, "opacity": 0.55},
            "encoding": {
                **at,
                "detail": {"field": "run"},
                "order": {"field": "speedup"},
                **({"color": colour} if several else {}),
            },
        },
        interval_bar("y", "value", at, colour),
        interval_bar("x", "speedup", at, colour),
        {
            "mark": {"type": "point", "filled": True, "opacity": 1, "strokeWidth": 2},
            "encoding": {
                **at,
                "fill": colour,
                "stroke": colour,
                "shape": shape_by("kind", kinds),
                "size": {"condition": {"test": CHOSEN, "value": 260}, "value": 90},
                "fillOpacity": {"condition": {"test": "datum.basis === 'measured'", "value": 1}, "value": 0},
                "tooltip": [
                    {"field": "run", "title": "run"},
                    {"field": "name", "title": "model"},
                    {"field": "speedup", "title": "speedup", "format": ".2f"},
                    {"field": "basis", "title": "speedup is"},
                    {"field": "value", "title": metric, "format": ".4~g"},
                ],
            },
        },
        _labels(at, "datum.kind !== 'alternative'", above=True),
        # Letters stand below their marks, so that they do not cover the target of a member nearby.
        _labels(at, "datum.kind === 'alternative'", above=False),
    ]
    return make_chart(
        "quality",
        f"{metric} against speedup" if same_metric else "quality against speedup",
        _notes(rows, up_is_better, fit),
        layers,
        rows,
        {
            **({"run": lambda row: row["run"]} if several else {}),
            "model": labelled_name,
            "kind": lambda row: row["kind"],
            "speedup": lambda row: interval_text(
                row["speedup"], row["speedup_low"], row["speedup_high"], "x"
            ),
            "speedup is": lambda row: row["basis"] if row["kind"] != "dense model" else "by definition",
            metric: lambda row: interval_text(row["value"], row["value_low"], row["value_high"]),
        },
        height=360,
    )


def labelled_name(row: Row) -> str:
    """Return the name of a row, with its label in the chart before it if that is another."""
    return row["name"] if row["label"] == row["name"] else f"{row['label']}: {row['name']}"


def _labels(at: Spec, which: str, above: bool) -> Spec:
    """Write the labels of the marks that pass a test beside them."""
    return {
        "transform": [{"filter": which}],
        "mark": {"type": "text", "align": "left", "dx": 9, "dy": -9 if above else 11},
        "encoding": {
            **at,
            "text": {"field": "label"},
            # On a phone, the labels of all members would cover each other.
            "opacity": {
                "condition": {"test": f"{NARROW} && datum.key !== '' && datum.key !== chosen", "value": 0},
                "value": 1,
            },
        },
    }


def _notes(rows: Sequence[Row], up_is_better: bool, fit: LinearFit | None) -> list[str]:
    has_intervals = any(row["value_low"] is not None or row["speedup_low"] is not None for row in rows)
    is_predicted = any(row["basis"] == "predicted" for row in rows)
    return [
        f"{'Up' if up_is_better else 'Down'} and to the right is better.",
        f"The dashed line is {SHARE} of the dense model's metric.",
        f"Dotted: {fit}." if fit else "",
        "Bars are 95 % intervals of the metric and 99 % intervals of the measured speedup."
        if has_intervals
        else "",
        "Hollow marks are speedups that the latency table predicts; they were not measured."
        if is_predicted
        else "",
    ]


def _as_share(row: Row, run: RunData) -> Row:
    """Return a row with its metric as a percentage of the dense model's."""
    metric = run.reports[0]["metric"]
    dense, greater = metric["dense"], is_greater_better(metric)

    def share(value: float | None) -> float | None:
        if value is None or not dense or not value:
            return None
        return 100 * (value / dense if greater else dense / value)

    ends = (row["value_low"], row["value_high"]) if greater else (row["value_high"], row["value_low"])
    return {**row, "value": share(row["value"]), "value_low": share(ends[0]), "value_high": share(ends[1])}


def _speedup_axis(rows: Sequence[Row]) -> Spec:
    bases = {row["basis"] for row in rows if row["kind"] == "compressed"}
    name = f"{next(iter(bases))} speedup" if len(bases) == 1 else "speedup"
    values = [row[end] for row in rows for end in ("speedup", "speedup_low", "speedup_high")]
    low, high = padded_domain(values, 0.05)
    title = f"{name} over the dense model"
    if high > LARGEST_LINEAR:
        scale: Spec = {"type": "log", "base": 2, "domain": [max(low, 0.9), high], "nice": False}
        return {"type": "quantitative", "title": f"{title}, logarithmic (x)", "scale": scale}
    scale = {"domain": [low, high], "nice": False, "zero": False}
    return {"type": "quantitative", "title": f"{title} (x)", "scale": scale, "axis": {"tickCount": 6}}


def _line_of_recovery(lines: list[Row], rows: Sequence[Row], at: Spec, colour: Spec | None) -> list[Spec]:
    """Draw the line of 99 % of each dense model's metric; that of a single run is named."""
    coloured = {"color": colour} if colour else {}
    named = lines if len(lines) == 1 else []
    place, below = _free_place(rows, named[0]["line"]) if named else (1.0, False)
    return [
        {
            "data": {"values": lines},
            "mark": {"type": "rule", "style": "reference", "strokeDash": [6, 4]},
            "encoding": {"y": {**at["y"], "field": "line"}, **coloured},
        },
        {
            "data": {"values": [{**line, "place": place, "label": f"{SHARE} of dense"} for line in named]},
            "mark": {"type": "text", "style": "reference-label", "dy": 9 if below else -7},
            "encoding": {
                "x": {**at["x"], "field": "place"},
                "y": {**at["y"], "field": "line"},
                "text": {"field": "label"},
                **coloured,
            },
        },
    ]


def _free_place(rows: Sequence[Row], line: float) -> tuple[float, bool]:
    """Return where the name of a line covers no mark: a speedup, and whether it is below the line.

    The place is the middle of the widest gap between marks, on the side of the line where the curve through
    the members is not.
    """
    points = sorted((row["speedup"], row["value"], row["kind"]) for row in rows if row["value"] is not None)
    speedups = [speedup for speedup, _, _ in points]
    ratio = max(speedups) > LARGEST_LINEAR  # the axis is logarithmic
    gaps = [(right / left if ratio else right - left, left, right) for left, right in pairwise(speedups)]
    if not gaps:
        return 1.0, False
    _, left, right = max(gaps)
    place = (left * right) ** 0.5 if ratio else (left + right) / 2
    curve = [(speedup, value) for speedup, value, kind in points if kind != "alternative"]
    before = [value for speedup, value in curve if speedup <= place]
    after = [value for speedup, value in curve if speedup > place]
    height = (before[-1] + after[0]) / 2 if before and after else (before or after)[0]
    return place, height > line


def _fitted_line(fit: LinearFit, rows: Sequence[Row], at: Spec) -> Spec:
    """Draw the line that fits the members best."""
    speedups = [row["speedup"] for row in rows if row["kind"] == "compressed"]
    low, high = min(speedups), max(speedups)
    points = [low + (high - low) * index / 40 for index in range(41)]  # the axis may be logarithmic
    values = [{"speedup": point, "value": fit.intercept + fit.slope * point} for point in points]
    return {
        "data": {"values": values},
        "mark": {"type": "line", "style": "reference", "strokeDash": [1, 3]},
        "encoding": at,
    }

"""Charts of how a family was made: latency curves, the searches, the trainings."""

from collections.abc import Sequence

from ziplm.results.chart import (
    CHOSEN,
    LEGEND,
    LINE_LEGEND,
    Chart,
    Spec,
    colour_by,
    cut_axis_title,
    dash_by,
    make_chart,
    padded_domain,
    shape_by,
)
from ziplm.results.plain import finite, mapping
from ziplm.results.rows import Row, latency_rows, search_rows
from ziplm.results.run_data import RunData
from ziplm.results.texts import environment_text, interval_text, number_text
from ziplm.results.training_rows import check_rows, training_rows

LOSSES = {
    "kl": "divergence from the dense model (KL)",
    "task": "loss of the task",
}


def latency_charts(runs: Sequence[RunData]) -> list[Chart]:
    """Draw the time of one branch against its size, one chart for each kind of branch."""
    rows = latency_rows(runs)
    return [
        _latency_chart(runs, kind, [row for row in rows if row["kind"] == kind])
        for kind in dict.fromkeys(row["kind"] for row in rows)
    ]


def _latency_chart(runs: Sequence[RunData], kind: str, rows: list[Row]) -> Chart:
    several = len(runs) > 1
    labels = [run.label for run in runs]
    x_axis = {"field": "size", "type": "quantitative", "title": f"{kind} kept", "axis": {"tickMinStep": 1}}
    y_axis: Spec = {"type": "quantitative", "scale": {"zero": True}}
    y_title = "time of one branch (ms)"
    coloured = {"color": colour_by("run", labels, LINE_LEGEND)} if several else {}
    at: Spec = {"x": x_axis, "y": {"field": "milliseconds", "title": y_title, **y_axis}}
    shade: Spec = {
        "mark": {"type": "area", "opacity": 0.2},
        "encoding": {**at, "y": {"field": "low", **y_axis}, "y2": {"field": "high"}, **coloured},
    }
    line: Spec = {
        "mark": {"type": "line", "point": {"size": 25}, "strokeWidth": 2},
        "encoding": {
            **at,
            **coloured,
            **({"strokeDash": dash_by("run", labels)} if several else {}),
            "tooltip": [
                {"field": "size", "title": f"{kind} kept"},
                {"field": "milliseconds", "title": y_title, "format": ".4~g"},
            ],
        },
    }
    has_intervals = all(row["low"] is not None for row in rows)
    environments = [environment_text(run.latency.environment.to_dict()) for run in runs if run.latency]
    where = environments[0] if len(set(environments)) == 1 else "environments differ, see below"
    return make_chart(
        f"latency-{'-'.join(kind.split()).lower()}",
        f"latency of {kind}: {where}",
        ["The shade is the 99 % interval of each measurement." if has_intervals else ""],
        [shade, line] if has_intervals else [line],
        rows,
        {
            **({"run": lambda row: row["run"]} if several else {}),
            f"{kind} kept": lambda row: str(row["size"]),
            y_title: lambda row: interval_text(row["milliseconds"], row["low"], row["high"]),
        },
        height=240,
    )


def search_chart(runs: Sequence[RunData]) -> Chart | None:
    """Draw the lowest loss so far against the number of evaluations; None if no search left its state."""
    rows = search_rows(runs)
    if not rows:
        return None
    losses = list(dict.fromkeys(run.options.get("loss", "kl") for run in runs if run.searches))
    loss = " or ".join(LOSSES.get(str(name), str(name)) for name in losses)
    logarithmic = all(row["loss"] > 0 for row in rows)
    scale: Spec = {"type": "log", "nice": False, "padding": 8} if logarithmic else {"zero": True}
    title = "lowest loss so far" + (", logarithmic" if logarithmic else "")
    layer = _step_lines(runs, rows, "evaluations", "candidates evaluated", title, scale, "step-after")
    return make_chart(
        "search",
        f"progress of the search: {loss}",
        ["Each step is a better choice of sizes for the same budget, judged on the search samples."],
        layer,
        rows,
        {
            **({"run": lambda row: row["run"]} if len(runs) > 1 else {}),
            "target": lambda row: row["name"],
            "candidates evaluated": lambda row: str(row["evaluations"]),
            "lowest loss so far": lambda row: number_text(row["loss"]),
        },
        height=260,
    )


def training_charts(runs: Sequence[RunData]) -> list[Chart]:
    """Draw losses and metrics over the steps of all trainings; no chart if nothing was trained."""
    losses, metrics = training_rows(runs)
    trained = [run for run in runs if any(report.get("training") for report in run.reports)]
    counted = "Steps count on from one target to the next." if metrics else ""
    charts = []
    if losses:
        sentences = [*_loss_sentences(trained), counted]
        charts.append(_loss_chart("training-loss", "loss while fine-tuning", sentences, runs, losses))
    if checks := check_rows(runs):
        title = "loss on samples kept apart while fine-tuning"
        sentences = ["The last weights are saved, unless an earlier loss is clearly lower.", counted]
        charts.append(_loss_chart("training-checks", title, sentences, runs, checks))
    return [*charts, _metric_chart(runs, metrics)] if metrics else charts


def _loss_chart(
    name: str, title: str, sentences: list[str], runs: Sequence[RunData], rows: list[Row]
) -> Chart:
    """Draw a loss over the steps, and list the metric where there is one."""
    positive = all(row["loss"] > 0 for row in rows)
    scale: Spec = {"type": "log", "nice": False, "padding": 8} if positive else {"zero": True}
    y_title = "mean loss" + (", logarithmic" if positive else "")
    metric = _metric_names(runs, rows)
    judged = any(row.get("value") is not None for row in rows)
    return make_chart(
        name,
        title,
        sentences,
        _step_lines(runs, rows, "step", "optimizer steps", y_title, scale),
        rows,
        {
            **({"run": lambda row: row["run"]} if len(runs) > 1 else {}),
            "model": lambda row: row["name"],
            "step": lambda row: str(row["step"]),
            "loss": lambda row: number_text(row["loss"]),
            **({metric: lambda row: _value_text(row)} if judged else {}),
        },
        height=240,
    )


def _value_text(row: Row) -> str:
    return "" if row.get("value") is None else number_text(row["value"])


def _loss_sentences(runs: Sequence[RunData]) -> list[str]:
    """Name the loss of fine-tuning; that of each run if they differ."""
    sentences = {run.label: _loss_sentence(run) for run in runs}
    if len(set(sentences.values())) == 1:
        return [next(iter(sentences.values()))]
    return [f"{label}: {sentence}" for label, sentence in sentences.items() if sentence]


def _loss_sentence(run: RunData) -> str:
    """Name the loss of fine-tuning: the weighted sum of up to four losses."""
    names = {"task": "task", "logit": "logits", "token": "hidden states", "cosine": "cosine of embeddings"}
    trainings = [report["training"] for report in run.reports if report.get("training")]
    weights = mapping(trainings[0].get("loss_weights"))
    if not weights:  # reports of version 0.1
        weights = {name: run.options.get(f"{name}_weight") for name in names}
    parts = [f"{weights[key]:g} x {name}" for key, name in names.items() if any(finite([weights.get(key)]))]
    return f"Loss: {' + '.join(parts)}." if parts else ""


def _metric_chart(runs: Sequence[RunData], rows: list[Row]) -> Chart:
    """Draw the metric after each training."""
    several = len(runs) > 1
    metric = _metric_names(runs, rows)
    domain = padded_domain([row[end] for row in rows for end in ("value", "value_low", "value_high")])
    y_axis: Spec = {
        "type": "quantitative",
        "scale": {"domain": domain, "zero": False, "nice": True},
        "title": cut_axis_title(metric, domain),
    }
    x_axis: Spec = {
        "field": "step",
        "type": "quantitative",
        "title": "optimizer steps of the whole run",
        "axis": {"tickMinStep": 1},
        "scale": {"domain": [0, 1.08 * max(row["step"] for row in rows)], "nice": False},
    }
    by_run = _run_colour(runs, rows, LEGEND)
    shape = {**shape_by("run", by_run["scale"]["domain"]), "legend": by_run["legend"]}
    coloured = {"color": by_run} if several else {}
    at = {"x": x_axis, "y": {"field": "value", **y_axis}}
    layers: list[Spec] = [
        {
            "mark": {"type": "line", "opacity": 0.5},
            "encoding": {**at, **coloured},
        },
        {
            "transform": [{"filter": "isValid(datum.value_low)"}],
            "mark": {"type": "bar", "width": 2, "opacity": 0.7},
            "encoding": {
                **at,
                "y": {"field": "value_low", **y_axis},
                "y2": {"field": "value_high"},
                **coloured,
            },
        },
        {
            "mark": {"type": "point", "filled": True, "opacity": 1},
            "encoding": {
                **at,
                **coloured,
                **({"shape": shape} if several else {}),
                "size": {"condition": {"test": CHOSEN, "value": 220}, "value": 90},
                "tooltip": [{"field": "name", "title": "model"}, {"field": "value", "title": metric}],
            },
        },
        {
            "mark": {"type": "text", "align": "left", "dx": 9, "dy": -9},
            "encoding": {**at, "text": {"field": "name"}},
        },
    ]
    return make_chart(
        "training-metric",
        f"{metric} after each fine-tuning",
        ["Bars are 95 % intervals." if any(row["value_low"] is not None for row in rows) else ""],
        layers,
        rows,
        {
            **({"run": lambda row: row["run"]} if several else {}),
            "model": lambda row: row["name"],
            "steps so far": lambda row: str(row["step"]),
            metric: lambda row: interval_text(row["value"], row["value_low"], row["value_high"]),
        },
        height=240,
    )


def _step_lines(
    runs: Sequence[RunData],
    rows: Sequence[Row],
    x_field: str,
    x_title: str,
    y_title: str,
    y_scale: Spec,
    interpolate: str = "linear",
) -> list[Spec]:
    """Draw one line for each target of each run; the line of the chosen member is thicker."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    by_run = _run_colour(runs, rows, LINE_LEGEND)
    return [
        {
            "mark": {"type": "line", "interpolate": interpolate},
            "encoding": {
                "x": {
                    "field": x_field,
                    "type": "quantitative",
                    "title": x_title,
                    "axis": {"tickMinStep": 1},
                    "scale": {"zero": True},
                },
                "y": {"field": "loss", "type": "quantitative", "title": y_title, "scale": y_scale},
                "color": by_run if len(runs) > 1 else colour_by("name", names, LINE_LEGEND),
                "strokeDash": dash_by("name", names),
                "detail": {"field": "key"},
                "strokeWidth": {"condition": {"test": CHOSEN, "value": 4}, "value": 2},
            },
        }
    ]


def _run_colour(runs: Sequence[RunData], rows: Sequence[Row], legend: Spec) -> Spec:
    """Encode runs by the colours that they have in all charts; the legend names those with values here."""
    shown = [run.label for run in _with_values(runs, rows)]
    return colour_by("run", [run.label for run in runs], {**legend, "values": shown})


def _metric_names(runs: Sequence[RunData], rows: Sequence[Row]) -> str:
    return " or ".join(dict.fromkeys(run.metric for run in _with_values(runs, rows)))


def _with_values(runs: Sequence[RunData], rows: Sequence[Row]) -> list[RunData]:
    """Return the runs that some rows belong to."""
    return [run for run in runs if any(row["run"] == run.label for row in rows)]

"""Charts of a family: targets against measurements, and what is kept of each layer."""

from collections.abc import Sequence

from ziplm.results.chart import (
    CHOSEN,
    Chart,
    Spec,
    colour_by,
    interval_bar,
    make_chart,
    padded_domain,
    shape_by,
)
from ziplm.results.rows import PAPER_DEVIATION, WIDTHS, deviation_rows, size_rows
from ziplm.results.run_data import RunData
from ziplm.results.texts import interval_text, number_text, percent_text

MANY_TARGETS = 10


def deviation_chart(runs: Sequence[RunData]) -> Chart | None:
    """Draw by how much members are faster than asked for; None if no target asks for a speed."""
    rows = deviation_rows(runs)
    if not rows:
        return None
    several = len(runs) > 1
    rows = [{**row, "place": f"{row['run']}: {row['name']}" if several else row["name"]} for row in rows]
    places = list(dict.fromkeys(row["place"] for row in rows))
    bases = [basis for basis in ("measured", "predicted") if any(row["basis"] == basis for row in rows)]
    ends = [row[end] for row in rows for end in ("deviation", "deviation_low", "deviation_high")]
    domain = padded_domain([*ends, -PAPER_DEVIATION, PAPER_DEVIATION])
    y_axis: Spec = {"type": "quantitative", "scale": {"domain": domain, "nice": True}}
    y_title = "faster than the target (%)"
    x_axis: Spec = {
        "field": "place",
        "type": "nominal",
        "sort": places,
        "title": "target",
        "axis": {"labelAngle": 0 if len(places) <= MANY_TARGETS and not several else -40, "grid": False},
    }
    band = [{"low": -PAPER_DEVIATION, "high": PAPER_DEVIATION}]
    colour = colour_by("basis", bases)
    at = {"x": x_axis, "y": {"field": "deviation", "title": y_title, **y_axis}}
    layers: list[Spec] = [
        {
            "data": {"values": band},
            "mark": {"type": "rect", "style": "band"},
            "encoding": {"y": {"field": "low", **y_axis}, "y2": {"field": "high"}},
        },
        {
            "data": {"values": [{"zero": 0}]},
            "mark": {"type": "rule", "style": "reference"},
            "encoding": {"y": {"field": "zero", **y_axis}},
        },
        interval_bar("y", "deviation", at, colour),
        {
            "mark": {"type": "point", "filled": True, "opacity": 1, "strokeWidth": 2},
            "encoding": {
                **at,
                "fill": colour,
                "stroke": colour,
                "shape": shape_by("basis", bases),
                "size": {"condition": {"test": CHOSEN, "value": 220}, "value": 90},
                "fillOpacity": {"condition": {"test": "datum.basis === 'measured'", "value": 1}, "value": 0},
                "tooltip": [
                    {"field": "place", "title": "target"},
                    {"field": "basis", "title": "speedup is"},
                    {"field": "speedup", "title": "speedup", "format": ".3f"},
                    {"field": "deviation", "title": y_title, "format": "+.2f"},
                ],
            },
        },
    ]
    return make_chart(
        "deviation",
        "measured speedup against the target"
        if "measured" in bases
        else "predicted speedup against the target",
        [
            "0 is the speed that was asked for; above it, the model is faster.",
            f"The band is ±{PAPER_DEVIATION} %, the largest deviation in the ZipLM paper.",
            "Bars are 99 % intervals." if "measured" in bases else "",
            "Hollow marks are what the latency table predicts.",
        ],
        layers,
        rows,
        {
            **({"run": lambda row: row["run"]} if several else {}),
            "target": lambda row: row["name"],
            "speedup is": lambda row: row["basis"],
            "speedup": lambda row: number_text(row["speedup"], "x"),
            y_title: lambda row: interval_text(row["deviation"], row["deviation_low"], row["deviation_high"]),
        },
        height=260,
    )


def sizes_chart(runs: Sequence[RunData], kind: str) -> Chart:
    """Draw what each layer keeps of one kind of branch, for every member, as a heat map with numbers."""
    rows = [row for row in size_rows(runs) if row["kind"] == kind]
    several = len(runs) > 1
    rows = [{**row, "place": f"{row['run']}: {row['name']}" if several else row["name"]} for row in rows]
    places = list(dict.fromkeys(row["place"] for row in rows))
    dense = list(dict.fromkeys(row["dense"] for row in rows))
    at: Spec = {
        "x": {"field": "layer", "type": "ordinal", "title": "layer", "axis": {"labelAngle": 0}},
        "y": {"field": "place", "type": "nominal", "sort": places, "title": None},
    }
    shown = {
        "field": "share",
        "type": "quantitative",
        "scale": {"domain": [0, 1], "range": ["#ffffff", "#2a6fb0"], "interpolate": "rgb"},
    }
    legend = {"title": "share kept", "format": ".0%", "orient": "bottom", "values": [0, 0.5, 1]}
    layers: list[Spec] = [
        {
            "mark": {"type": "rect", "stroke": "#b0b8c0", "strokeWidth": 0.5},
            "encoding": {**at, "color": {**shown, "legend": legend}},
        },
        {
            "mark": {"type": "text", "fontSize": 10},
            "encoding": {
                **at,
                "text": {"field": "size"},
                # Whichever has the higher contrast with the cell.
                "color": {"condition": {"test": "datum.share > 0.9", "value": "white"}, "value": "black"},
            },
        },
    ]
    columns = {
        "target": lambda row: row["place"],
        "layer": lambda row: str(row["layer"]),
        "kept": lambda row: row["size"],
        "share of the dense size": lambda row: percent_text(row["share"]),
    }
    return make_chart(
        f"sizes-{'-'.join(kind.split()).lower()}",
        f"{kind} kept in each layer",
        [
            f"The dense model has {' or '.join(dense)}." if all(dense) else "",
            "0 is a branch that is removed.",
            WIDTHS if any("×" in row["size"] for row in rows) else "",
        ],
        layers,
        rows,
        columns,
        height=34 * len(places),
    )

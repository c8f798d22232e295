"""A chart: a Vega-Lite specification with its title, a description, and its values as a table.

Vega-Lite draws the same specification in the browser and as a file. Colours and fonts belong to a theme, so
that a page can follow the reader's light or dark setting. Series always differ in shape or dash as well, so
that a figure printed in grey stays readable.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ziplm.results.plain import finite
from ziplm.results.rows import Row

Spec = dict[str, Any]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class Chart:
    """A chart with what a reader needs who cannot see it.

    Attributes:
        name: name of the chart, also of its file.
        title: what it shows.
        notes: sentences to read with it.
        spec: the Vega-Lite specification without title and width.
        headings: headings of the table of its values.
        rows: the rows of that table, as text.
    """

    name: str
    title: str
    notes: tuple[str, ...]
    spec: Spec
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def description(self) -> str:
        """Describe the chart for those who cannot see it; the table has the values."""
        return " ".join([f"Chart: {self.title}.", *self.notes, "The values are in the table below it."])


def make_chart(
    name: str,
    title: str,
    notes: Sequence[str],
    layers: Sequence[Spec],
    rows: Sequence[Row],
    columns: Mapping[str, Callable[[Row], str]],
    height: int = 300,
) -> Chart:
    """Make a chart of layers that share their data.

    Args:
        name: name of the chart.
        title: what it shows.
        notes: sentences to read with it; empty ones are left out.
        layers: Vega-Lite layers.
        rows: the data.
        columns: how the table shows a row, by heading.
        height: height in pixels.
    """
    spec: Spec = {
        "data": {"values": [_plain(row) for row in rows]},
        "params": [{"name": "chosen", "value": ""}],
        "height": height,
        "layer": list(layers),
    }
    texts = tuple(tuple(text(row) for text in columns.values()) for row in rows)
    return Chart(name, title, tuple(note for note in notes if note), spec, tuple(columns), texts)


def _plain(row: Row) -> Row:
    """Replace numbers that JSON cannot express."""
    return {
        name: None if isinstance(value, float) and not finite([value]) else value
        for name, value in row.items()
    }


CHOSEN = "datum.key !== '' && datum.key === chosen"
"""Vega expression: whether a row belongs to the member that the reader has chosen."""


NARROW = "width < 420"
"""Vega expression: whether the chart is as narrow as on a phone."""
LEGEND: Spec = {
    "title": None,
    "orient": "bottom",
    "direction": "horizontal",
    "columns": {"expr": f"{NARROW} ? 2 : 5"},
    "labelLimit": 200,
}
LINE_LEGEND: Spec = {**LEGEND, "symbolType": "stroke", "symbolSize": 900}
"""A legend of lines, whose symbols are long enough to tell dashes apart."""


def colour_by(field: str, order: Sequence[str], legend: Spec = LEGEND) -> Spec:
    """Encode a field by colour, in the order of the theme's palette."""
    return {"field": field, "type": "nominal", "scale": {"domain": list(order)}, "legend": legend}


def shape_by(field: str, order: Sequence[str]) -> Spec:
    """Encode a field by shape, so that colour is never all that differs."""
    shapes = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]
    scale = {"domain": list(order), "range": [shapes[index % len(shapes)] for index in range(len(order))]}
    return {**colour_by(field, order), "scale": scale}


def dash_by(field: str, order: Sequence[str], legend: Spec = LINE_LEGEND) -> Spec:
    """Encode a field by dash."""
    dashes = [[1, 0], [7, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 2, 1, 2]]
    scale = {"domain": list(order), "range": [dashes[index % len(dashes)] for index in range(len(order))]}
    return {**colour_by(field, order, legend), "scale": scale}


def interval_bar(channel: str, field: str, at: Spec, colour: Spec) -> Spec:
    """Draw the interval of a field as a bar along one axis."""
    other = "y" if channel == "x" else "x"
    return {
        "transform": [{"filter": f"isValid(datum.{field}_low) && isValid(datum.{field}_high)"}],
        "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.7},
        "encoding": {
            other: at[other],
            channel: {**at[channel], "field": f"{field}_low"},
            f"{channel}2": {"field": f"{field}_high"},
            "color": colour,
        },
    }


def padded_domain(values: Sequence[Any], share: float = 0.08) -> list[float]:
    """Return the ends of an axis that leaves some space around all values."""
    numbers = finite(values) or [0.0, 1.0]
    low, high = min(numbers), max(numbers)
    space = share * (high - low) or share * abs(high) or 1.0
    return [low - space, high + space]


def cut_axis_title(title: str, domain: Sequence[float]) -> str:
    """Return the title of an axis, which says so if the axis does not contain 0."""
    return title if domain[0] <= 0 <= domain[1] else f"{title} (axis does not start at 0)"


def theme(*, dark: bool = False, font: str = FONT) -> Spec:
    """Return the Vega-Lite configuration of the light or the dark theme.

    The palette follows that of Okabe and Ito, which colour-blind readers can tell apart. In the light theme,
    its first colours have different brightness, so that they also differ when they are printed in grey.
    """
    text, faint, grid = ("#e6e9ee", "#aeb6c2", "#3a424e") if dark else ("#1b1f24", "#57606a", "#d8dee4")
    palette = (
        ["#6cb6ff", "#f5a623", "#4fd6a5", "#f28cc2", "#ffe066", "#b9c2cc"]
        if dark
        else ["#00508f", "#d97700", "#1a7f5e", "#a3336f", "#8a7400", "#5c5c5c"]
    )
    return {
        "background": None,
        "font": font,
        "axis": {
            "labelColor": text,
            "titleColor": text,
            "gridColor": grid,
            "domainColor": faint,
            "tickColor": faint,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "titlePadding": 8,
        },
        "legend": {
            "labelColor": text,
            "titleColor": text,
            "labelFontSize": 12,
            "symbolStrokeWidth": 2,
            "symbolSize": 90,
            "symbolOpacity": 1,
            "symbolBaseFillColor": faint,
            "symbolBaseStrokeColor": faint,
            # Several legends stand below each other: side by side, they would be cut on a phone.
            "layout": {"bottom": {"anchor": "start", "direction": "vertical", "margin": 4}},
        },
        "axisX": {"labelFlush": False},  # else the last two labels may touch
        "title": {"color": text, "subtitleColor": faint, "anchor": "start", "fontSize": 14, "offset": 12},
        "text": {"color": text, "fontSize": 12},
        "mark": {"color": palette[0]},
        "rule": {"color": faint},
        "view": {"stroke": None},
        "range": {"category": palette, "ordinal": palette},
        "style": {
            "reference": {"color": faint, "strokeWidth": 1.5},
            "reference-label": {"color": faint, "fontSize": 11},
            "band": {"color": faint, "opacity": 0.16},
        },
    }

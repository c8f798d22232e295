"""The figure: time against size, with what was measured around it and what proportional cost would be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latency_profiler._errors import OptionError
from latency_profiler._files import written_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from latency_profiler._curve import LatencyCurve
    from latency_profiler._table import LatencyTable

FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def draw(tables: Mapping[str, LatencyTable], path: Path) -> None:
    """Save a figure of the tables, by name, to `path` (.png, .svg or .pdf)."""
    if path.suffix not in FORMATS:
        raise OptionError(f"{path} is no {', '.join(FORMATS)} file", "choose such an ending")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OptionError("plots need matplotlib", "pip install latency-profiler[plot]") from error
    kinds = list({kind: None for table in tables.values() for kind in table.curves})
    figure = Figure(figsize=(5.2 * len(kinds), 4.2), layout="constrained")
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        curves = {name: table.curves[kind] for name, table in tables.items() if kind in table.curves}
        _draw_kind(axes, kind, curves)
    figure.suptitle(_title(tables), fontsize=9, color="0.35")
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=160)


def _draw_kind(axes: Any, kind: str, curves: Mapping[str, LatencyCurve]) -> None:
    for index, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[index % len(COLOURS)]
        milliseconds = [1e3 * seconds for seconds in curve.seconds]
        if curve.timings:
            low = [1e3 * timing.minimum for timing in curve.timings]
            high = [1e3 * timing.median for timing in curve.timings]
            axes.fill_between(curve.sizes, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(curve.sizes, milliseconds, "o-", color=colour, markersize=3, linewidth=1.4, label=name)
        axes.plot([0, curve.sizes[0]], [0, milliseconds[0]], ":", color=colour, linewidth=1)
        if len(curves) == 1:
            _annotate_speedups(axes, curve)
    axes.set(xlabel=f"{kind} size", ylabel="ms", xlim=(0, None), ylim=(0, None), title=kind)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(curves) > 1:
        axes.legend(frameon=False)


def _annotate_speedups(axes: Any, curve: LatencyCurve) -> None:
    """Write the speedup at the first size that reaches 1.5x, 2x, 4x and so on."""
    for target in (1.5, 2, 4, 8, 16):
        reached = [index for index, speedup in enumerate(curve.speedups) if speedup >= target]
        if reached and curve.sizes[reached[0]] > 0:
            size, seconds = curve.sizes[reached[0]], curve.seconds[reached[0]]
            axes.annotate(
                f"{curve.speedups[reached[0]]:.1f}x",
                (size, 1e3 * seconds),
                xytext=(-6, 6),
                textcoords="offset points",
                ha="right",
                fontsize=8,
            )


def _title(tables: Mapping[str, LatencyTable]) -> str:
    return "\n".join(f"{name}: {table.environment}" for name, table in tables.items())

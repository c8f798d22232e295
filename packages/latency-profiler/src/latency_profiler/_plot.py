"""Figures of time and speedup against size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latency_profiler._errors import OptionError
from latency_profiler._extras import require_extra
from latency_profiler._files import atomic_write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from latency_profiler._curve import LatencyCurve
    from latency_profiler._table import LatencyTable

FORMATS = (".png", ".svg", ".pdf")
# The palette of Okabe and Ito, which colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def draw(tables: Mapping[str, LatencyTable], path: Path) -> None:
    """Draw one or several tables and save the figure.

    Args:
        tables: Tables by the name shown in the legend.
        path: Output file, ending in .png, .svg or .pdf.

    Raises:
        OptionError: The file has another ending, or cannot be written.
        MissingExtra: matplotlib is not installed.
    """
    if path.suffix not in FORMATS:
        raise OptionError(f"cannot draw to {path}", f"use a file ending in {', '.join(FORMATS)}")
    require_extra("plot")
    from matplotlib.figure import Figure

    kinds = list({kind: None for table in tables.values() for kind in table.curves})
    figure = Figure(figsize=(4.8 * max(2, len(kinds)), 6.6), layout="constrained")
    panels = figure.subplots(2, len(kinds), squeeze=False)
    for column, kind in enumerate(kinds):
        for index, (name, table) in enumerate(tables.items()):
            if kind in table.curves:
                colour = COLOURS[index % len(COLOURS)]
                _draw_times(panels[0, column], name, table.curves[kind], colour)
                _draw_speedups(panels[1, column], name, table.curves[kind], colour)
        _label(panels[0, column], kind, "time, ms")
        _label(panels[1, column], kind, "speedup")
        _label_ticks_with_numbers(panels[1, column])
    figure.suptitle("\n".join(_environments(tables)), fontsize=8, color="0.4")
    figure.supxlabel(
        "dots: monotone fit; band: fastest to median sample; dotted line: time in proportion to size",
        fontsize=8,
        color="0.4",
    )
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=160, format=path.suffix[1:])


def _draw_times(axes: Any, name: str, curve: LatencyCurve, colour: str) -> None:
    milliseconds = [1e3 * seconds for seconds in curve.seconds]
    if curve.timings:
        fastest = [1e3 * timing.minimum for timing in curve.timings]
        median = [1e3 * timing.median for timing in curve.timings]
        axes.fill_between(curve.sizes, fastest, median, color=colour, alpha=0.16, linewidth=0)
    axes.plot(curve.sizes, milliseconds, "o-", color=colour, markersize=3, linewidth=1.4, label=name)
    axes.plot([0, curve.sizes[0]], [0, milliseconds[0]], ":", color=colour, linewidth=1)
    axes.set(xlim=(0, None), ylim=(0, None))


def _draw_speedups(axes: Any, name: str, curve: LatencyCurve, colour: str) -> None:
    """Use logarithmic axes, on which a geometric grid is evenly spaced; they cannot show size 0."""
    sizes = [size for size in curve.sizes if size > 0]
    if not sizes:
        return
    axes.plot(
        sizes, curve.speedups[: len(sizes)], "o-", color=colour, markersize=3, linewidth=1.4, label=name
    )
    axes.plot(sizes, [sizes[0] / size for size in sizes], ":", color=colour, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)


def _label(axes: Any, kind: str, quantity: str) -> None:
    axes.set(xlabel=f"{kind} size", ylabel=quantity)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)


def _label_ticks_with_numbers(axes: Any) -> None:
    """Label ticks with numbers instead of powers: 64 rather than 2^6, 8x rather than 2^3."""
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}x")


def _environments(tables: Mapping[str, LatencyTable]) -> list[str]:
    """Return one line per environment, with the names of the tables that were measured in it."""
    names_by_environment: dict[str, list[str]] = {}
    for name, table in tables.items():
        names_by_environment.setdefault(str(table.environment), []).append(name)
    return [f"{', '.join(names)}: {environment}" for environment, names in names_by_environment.items()]

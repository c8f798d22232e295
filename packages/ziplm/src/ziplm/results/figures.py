"""Figures of a run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latency_profiler import LatencyTable

from ziplm.errors import BadRun, UsageError
from ziplm.files import believed, read_json, written_whole
from ziplm.results.reports import read_report
from ziplm.results.scaling import LinearFit, fit_metric, speedup_of
from ziplm.runs.folder import Run
from ziplm.runs.table import read_run_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RECOVERY = 0.99


def plot_run(folder: Path, output: Path | None = None, suffix: str = "png") -> list[Path]:
    """Draw all figures of a run.

    Args:
        folder: the run folder.
        output: folder for the files; None for `figures` in the run folder.
        suffix: "png" or "svg".

    Returns:
        The files.

    Raises:
        BadRun: if no target of the run is finished.
        UsageError: if matplotlib is missing.
    """
    try:
        import matplotlib
    except ImportError:
        raise UsageError("figures need matplotlib", 'run: pip install "ziplm[plot]"') from None
    matplotlib.use("agg")
    run = Run(folder)
    reports = read_reports(folder)
    output = output or folder / "figures"
    figures: dict[str, Callable[[Axes], None]] = {
        "metric": lambda axes: metric_figure(axes, reports),
        "speedup": lambda axes: speedup_figure(axes, reports),
        "sizes": lambda axes: sizes_figure(axes, reports),
        "latency": lambda axes: latency_figure(axes, read_run_table(run.latency_file)),
        "search": lambda axes: search_figure(axes, run),
    }
    return [_drawn(draw, output / f"{name}.{suffix}") for name, draw in figures.items()]


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """Read metrics.json of all finished targets, the slowest first; raise BadRun if there is none."""
    reports = sorted((read_report(path) for path in folder.glob("*/metrics.json")), key=speedup_of)
    if not reports:
        raise BadRun(f"{folder} has no finished target", "finish one with ziplm compress first")
    return reports


def metric_figure(axes: "Axes", reports: Sequence[dict[str, Any]]) -> None:
    """Draw the metric against the speedup, with the dense model's, 99 % of it, and the best fitting line."""
    metric = reports[0]["metric"]
    name, dense = metric["name"], metric["dense"]
    speedups = [speedup_of(report) for report in reports]
    axes.plot(speedups, [report["metric"]["compressed"] for report in reports], "o-", label="compressed")
    axes.axhline(dense, color="black", linewidth=1, label="dense")
    greater_is_better = metric.get("greater_is_better", name != "perplexity")  # reports of 0.1 lack it
    share = dense * RECOVERY if greater_is_better else dense / RECOVERY
    axes.axhline(share, color="gray", linewidth=1, linestyle="--", label=f"{RECOVERY:.0%} of dense")
    if fit := fit_metric(reports):
        ends = [min(speedups), max(speedups)]
        axes.plot(
            ends, [fit.intercept + fit.slope * x for x in ends], ":", color="gray", label=_fit_label(fit)
        )
    axes.set(xlabel="speedup", ylabel=name, title=f"{name} against speedup")
    axes.legend()


def _fit_label(fit: LinearFit) -> str:
    return f"linear fit, slope {fit.slope:.2g} [{fit.slope_low:.2g}, {fit.slope_high:.2g}]"


def speedup_figure(axes: "Axes", reports: Sequence[dict[str, Any]]) -> None:
    """Draw the measured against the predicted speedup, with intervals."""
    measured = [report for report in reports if report["measured"]]
    axes.set(xlabel="predicted speedup", ylabel="measured speedup", title="predicted and measured speedup")
    if not measured:
        axes.text(0.5, 0.5, "nothing was measured", ha="center", transform=axes.transAxes)
        return
    predicted = [report["predicted"]["speedup"] for report in measured]
    speedups = [report["measured"]["speedup"] for report in measured]
    below = [report["measured"]["speedup"] - report["measured"]["low"] for report in measured]
    above = [report["measured"]["high"] - report["measured"]["speedup"] for report in measured]
    axes.errorbar(predicted, speedups, yerr=[below, above], fmt="o", capsize=3)
    ends = [min(predicted + speedups), max(predicted + speedups)]
    axes.plot(ends, ends, color="gray", linewidth=1, linestyle="--")


def sizes_figure(axes: "Axes", reports: Sequence[dict[str, Any]]) -> None:
    """Draw the share of heads and of width that each layer keeps, one row for each target."""
    kinds = list(reports[0]["sizes"])
    rows = [
        [
            size / report["dense_sizes"][kind]
            for layer in zip(*report["sizes"].values(), strict=True)
            for kind, size in zip(kinds, layer, strict=True)
        ]
        for report in reports
    ]
    image = axes.imshow(rows, aspect="auto", vmin=0, vmax=1, cmap="viridis")
    axes.figure.colorbar(image, ax=axes, label="share kept")
    axes.set_yticks(range(len(reports)), [report["target"]["name"] for report in reports])
    names = [f"{layer}{kind[0]}" for layer in range(len(rows[0]) // len(kinds)) for kind in kinds]
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize="small")
    axes.set(xlabel="layer, attention (a) and FFN (f)", title="share of each branch that is kept")


def latency_figure(axes: "Axes", table: LatencyTable) -> None:
    """Draw the time of a branch against its size."""
    for kind, curve in table.curves.items():
        largest = max(curve.sizes)
        axes.plot(
            [size / largest for size in curve.sizes], [1e3 * s for s in curve.seconds], ".-", label=kind
        )
    axes.set(xlabel="share of the branch's size", ylabel="ms", title="latency of one branch", ylim=(0, None))
    axes.legend()


def search_figure(axes: "Axes", run: Run) -> None:
    """Draw the best loss so far against the number of evaluations."""
    axes.set(xlabel="evaluations", ylabel="best loss / first", title="progress of the search")
    for path in sorted(run.state.glob("**/search.json")):
        with believed(path):
            losses = [loss for _, loss, _ in read_json(path)["evaluations"]]
        finite = [loss for loss in losses if isinstance(loss, int | float)]
        if finite and finite[0]:
            best = [min(finite[: count + 1]) / finite[0] for count in range(len(finite))]
            axes.step(range(1, len(best) + 1), best, where="post", label=path.parent.name)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


def _drawn(draw: Callable[["Axes"], None], path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    draw(figure.subplots())
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=150)
    return path

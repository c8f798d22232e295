"""The rows of the charts of trainings: losses, checks on samples kept apart, metrics after trainings."""

from collections.abc import Sequence
from typing import Any

from ziplm.results.plain import finite
from ziplm.results.rows import Row, asked_speedup, member_key
from ziplm.results.run_data import RunData
from ziplm.results.scaling import speedup_of


def training_rows(runs: Sequence[RunData]) -> tuple[list[Row], list[Row]]:
    """Return the loss at each logged step of all trainings in order, and the metric after each training.

    In gradual runs, steps count on from one training to the next. Otherwise each starts from the dense model,
    and there is no order in which to show metrics. The metric of the dense model is that after its own
    training, or at the start.
    """
    losses: list[Row] = []
    metrics: list[Row] = []
    for run in runs:
        trainings = _trainings(run)
        if not trainings:
            continue
        if run.dense_training is not None:
            losses += _loss_rows(run, "dense", "", 0, run.dense_training)
        for name, report, before in trainings:
            losses += _loss_rows(run, name, member_key(run, report), before, report["training"])
        if not _is_gradual(run):
            continue
        first, metric = trainings[0][2], trainings[0][1]["metric"]
        metrics.append(_metric_row(run, "dense", "", first, metric["dense"], metric.get("dense_interval")))
        for name, report, before in trainings:
            metric, step = report["metric"], before + int(report["training"].get("steps", 0))
            value, interval = metric["compressed"], metric.get("interval")
            metrics.append(_metric_row(run, name, member_key(run, report), step, value, interval))
    return losses, metrics


def check_rows(runs: Sequence[RunData]) -> list[Row]:
    """Return loss and metric on samples kept apart at each check of all trainings, with steps as above.

    The metric is None where the loss is not the lowest so far.
    """
    return [
        {
            "run": run.label,
            "name": name,
            "key": member_key(run, report),
            "step": before + int(check[0]),
            "loss": check[1],
            "value": check[2] if finite(check[2:]) else None,
        }
        for run in runs
        for name, report, before in _trainings(run)
        for check in report["training"].get("checks") or []
        if isinstance(check, list) and len(check) == 3 and len(finite(check[:2])) == 2
    ]


def _is_gradual(run: RunData) -> bool:
    return run.options.get("mode") != "finetune"


def _trainings(run: RunData) -> list[tuple[str, dict[str, Any], int]]:
    """Return the name and report of each trained target, and the steps before its training."""
    # In the order of their targets, as they were trained; measured speedups may be in another order.
    in_order = sorted(run.reports, key=lambda report: asked_speedup(report) or speedup_of(report))
    steps = int((run.dense_training or {}).get("steps", 0))
    found = []
    for report in in_order:
        if report.get("training"):
            found.append((report["target"]["name"], report, steps))
            steps += int(report["training"].get("steps", 0)) if _is_gradual(run) else 0
    return found


def _loss_rows(run: RunData, name: str, key: str, before: int, training: dict[str, Any]) -> list[Row]:
    return [
        {"run": run.label, "name": name, "key": key, "step": before + int(step), "loss": loss}
        for step, loss in (pair for pair in map(finite, training.get("losses") or []) if len(pair) == 2)
    ]


def _metric_row(
    run: RunData, name: str, key: str, step: int, value: float, interval: Sequence[float] | None
) -> Row:
    low, high = interval or (None, None)
    return {
        "run": run.label,
        "name": name,
        "key": key,
        "step": step,
        "value": value,
        "value_low": low,
        "value_high": high,
    }

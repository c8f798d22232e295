"""The rows of each figure: plain values with a name, as charts and tables show them.

Every function takes several runs, because a report of one run and a comparison of several show the same
figures. The key of a row names its member, so that a page can highlight all that belongs to one.
"""

import itertools
import math
import string
from collections.abc import Iterator, Sequence
from typing import Any

from ziplm.results.run_data import Report, RunData
from ziplm.results.sizes import groups_of, size_text

RECOVERY = 0.99
"""Share of the dense model's metric that figures mark with a line."""
PAPER_DEVIATION = 5.28
"""Largest deviation between target and measured speedup in the ZipLM paper, in per cent."""

WIDTHS = "8×24 are 8 heads of width 24."
"""Explanation of sizes that have widths, for captions."""

Row = dict[str, Any]

KIND_NAMES = {"attention": "attention heads", "ffn": "FFN columns"}


def kind_name(kind: str) -> str:
    """Return what a kind of branch, or a latency curve, is called in reports."""
    part, _, width = kind.partition("@")
    name = KIND_NAMES.get(part, part)
    return f"{name} of width {width}" if width else name


def member_key(run: RunData, report: Report) -> str:
    """Return what names a member among all runs."""
    return f"{run.label}/{report['target']['name']}"


def is_greater_better(metric: dict[str, Any]) -> bool:
    """Return the direction of a metric; reports of version 0.1 do not tell it."""
    return bool(metric.get("greater_is_better", metric["name"] != "perplexity"))


def recovery(metric: dict[str, Any]) -> float | None:
    """Return the share of the dense model's metric that a member keeps; None if it is not defined."""
    dense, compressed = metric["dense"], metric["compressed"]
    if not is_greater_better(metric):
        dense, compressed = compressed, dense
    return compressed / dense if dense > 0 and compressed >= 0 else None


def recovery_line(metric: dict[str, Any]) -> float:
    """Return the value of a metric at which 99 % of the dense model's is kept."""
    dense: float = metric["dense"]
    return dense * RECOVERY if is_greater_better(metric) else dense / RECOVERY


def quality_rows(runs: Sequence[RunData]) -> list[Row]:
    """Return metric and speedup of the dense models, the members and the alternatives, with intervals.

    Members are labelled with their targets, and alternatives with letters, since their names are long.
    """
    rows: list[Row] = []
    for run in runs:
        metric = run.reports[0]["metric"]
        rows.append(
            _quality(
                run, "dense model", "dense", metric["dense"], metric.get("dense_interval"), {"speedup": 1.0}
            )
        )
        for report in run.reports:
            metric = report["metric"]
            speed, basis = _speed(report)
            name = report["target"]["name"]
            row = _quality(run, "compressed", name, metric["compressed"], metric.get("interval"), speed)
            rows.append({**row, "basis": basis, "key": member_key(run, report)})
        rows += [
            _quality(run, "alternative", each["name"], each.get("metric"), each.get("interval"), each)
            for each in run.alternatives
            if each.get("metric") is not None and each.get("speedup") is not None
        ]
    alternatives = [row for row in rows if row["kind"] == "alternative"]
    for row, letter in zip(alternatives, _letters(), strict=False):
        row["label"] = letter
    return rows


def _letters() -> Iterator[str]:
    """Yield A, B and so on, and AA, AB and so on after Z."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product(string.ascii_uppercase, repeat=length))


def _quality(
    run: RunData, kind: str, name: str, value: Any, interval: Sequence[float] | None, speed: dict[str, Any]
) -> Row:
    low, high = interval or (None, None)
    return {
        "run": run.label,
        "kind": kind,
        "name": str(name),
        "label": str(name),
        "speedup": speed["speedup"],
        "speedup_low": speed.get("low"),
        "speedup_high": speed.get("high"),
        "basis": "measured",
        "value": value,
        "value_low": low,
        "value_high": high,
        "key": "",
        "sentence": str(speed.get("sentence") or ""),
    }


def _speed(report: Report) -> tuple[dict[str, Any], str]:
    """Return the measured speed of a member, or else the predicted one, and which of them it is."""
    if report["measured"] is not None:
        return report["measured"], "measured"
    return report["predicted"], "predicted"


def deviation_rows(runs: Sequence[RunData]) -> list[Row]:
    """Return by how many per cent members are faster than their targets, measured and predicted.

    Targets without a speed of their own, such as a share of the metric, are left out.
    """
    rows = []
    for run in runs:
        for report in run.reports:
            for basis in ("measured", "predicted"):
                speed = report[basis]
                wanted = _wanted_speedup(report, speed) if speed else None
                if not speed or not wanted:
                    continue
                ends = {end: speed.get(end) for end in ("low", "high")}
                rows.append(
                    {
                        "run": run.label,
                        "name": report["target"]["name"],
                        "basis": basis,
                        "target": wanted,
                        "speedup": speed["speedup"],
                        "deviation": _percent(speed["speedup"], wanted),
                        "deviation_low": _percent(ends["low"], wanted),
                        "deviation_high": _percent(ends["high"], wanted),
                        "key": member_key(run, report),
                    }
                )
    return rows


def _wanted_speedup(report: Report, speed: dict[str, Any]) -> float | None:
    """Return the speedup that a target asks for; for a latency, that over the dense model beside it."""
    target = report["target"]
    if target.get("kind", "speedup") == "speedup":
        return float(target["value"]) if target.get("value") else None
    if target["kind"] == "latency" and target.get("value") and speed.get("seconds"):
        return float(speed["speedup"] * speed["seconds"] / (target["value"] * 1e-3))
    return None


def asked_speedup(report: Report) -> float | None:
    """Return the speedup that a member was asked for; None if its target states none."""
    return _wanted_speedup(report, report["measured"] or report["predicted"])


def _percent(value: float | None, wanted: float) -> float | None:
    return None if value is None else 100 * (value / wanted - 1)


def size_rows(runs: Sequence[RunData]) -> list[Row]:
    """Return what members keep of each branch: the size as text, and its share of the dense size."""
    rows = []
    for run in runs:
        for report in run.reports:
            dense_sizes = report.get("dense_sizes") or {}
            for kind, sizes in (report.get("sizes") or {}).items():
                dense = dense_sizes.get(kind) or max(sizes, key=groups_of, default=1)
                rows += [
                    {
                        "run": run.label,
                        "name": report["target"]["name"],
                        "kind": KIND_NAMES.get(kind, str(kind)),
                        "layer": layer,
                        "size": size_text(size),
                        "share": min(1.0, groups_of(size) / (groups_of(dense) or 1)),
                        "dense": size_text(dense_sizes[kind]) if dense_sizes.get(kind) else "",
                        "key": member_key(run, report),
                    }
                    for layer, size in enumerate(sizes)
                ]
    return rows


def latency_rows(runs: Sequence[RunData]) -> list[Row]:
    """Return the time of one branch at each size, by kind of branch, with the interval of the measurement."""
    return [row for run in runs if run.latency for row in _curve_rows(run)]


def _curve_rows(run: RunData) -> Iterator[Row]:
    assert run.latency is not None
    for kind, curve in run.latency.curves.items():
        for index, (size, seconds) in enumerate(zip(curve.sizes, curve.seconds, strict=True)):
            timing = curve.timings[index] if curve.timings else None
            yield {
                "run": run.label,
                "kind": kind_name(kind),
                "size": size,
                "milliseconds": 1e3 * seconds,
                "low": None if timing is None else 1e3 * timing.low,
                "high": None if timing is None else 1e3 * timing.high,
            }


def search_rows(runs: Sequence[RunData]) -> list[Row]:
    """Return the lowest loss after each evaluation that lowered it, and after the last one, by target."""
    rows = []
    for run in runs:
        for target, losses in run.searches.items():
            best = math.inf
            for count, loss in enumerate(losses, start=1):
                if loss < best or count == len(losses):
                    best = min(best, loss)
                    rows.append(
                        {
                            "run": run.label,
                            "name": target,
                            "evaluations": count,
                            "loss": best,
                            "key": f"{run.label}/{target}",
                        }
                    )
    return rows

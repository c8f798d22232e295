"""What a report says in words: the result in one sentence, what to know about the figures, the settings."""

from collections.abc import Sequence
from typing import Any

from ziplm.results.plain import finite, mapping
from ziplm.results.rows import PAPER_DEVIATION, RECOVERY, deviation_rows, recovery
from ziplm.results.run_data import Report, RunData
from ziplm.results.scaling import speedup_of
from ziplm.results.texts import (
    NONE,
    competition_text,
    duration_text,
    list_text,
    number_text,
    percent_text,
)

SHARE = f"{100 * RECOVERY:g} %"


def best_member(run: RunData) -> tuple[Report | None, float | None]:
    """Return the fastest member that keeps 99 % of the metric, or else that which keeps most; its share."""
    shares = [(recovery(report["metric"]), report) for report in run.reports]
    known = [(share, report) for share, report in shares if share is not None]
    good = [(share, report) for share, report in known if share >= RECOVERY]
    if good:
        share, best = max(good, key=lambda each: speedup_of(each[1]))
    elif known:
        share, best = max(known, key=lambda each: each[0])
    else:
        return None, None
    return best, share


def headline(run: RunData) -> str:
    """Say how fast a model of the run keeps 99 % of the dense model's metric, or what comes closest."""
    best, share = best_member(run)
    if best is None or share is None:
        return f"The run has {len(run.reports)} models."
    name, metric = best["target"]["name"], best["metric"]
    if share >= RECOVERY:
        return (
            f"The fastest model that keeps {SHARE} of the dense model's {run.metric} is {name}: "
            f"{speed_words(best)}, with {run.metric} {number_text(metric['compressed'])} "
            f"(dense {number_text(metric['dense'])})."
        )
    return (
        f"No model of this run keeps {SHARE} of the dense model's {run.metric}. The closest is {name}: "
        f"{speed_words(best)}, and it keeps {percent_text(share)}{_within_chance(metric)}."
    )


def _within_chance(metric: dict[str, Any]) -> str:
    """Say so if the evaluation data cannot tell a member's metric apart from the dense model's."""
    difference = finite(metric.get("difference_interval") or ())
    if len(difference) == 2 and difference[0] <= 0 <= difference[1]:
        return ", a difference that may be chance with this many examples"
    return ""


def speed_words(report: Report) -> str:
    """Say how fast a member is, and whether that was measured."""
    measured = report["measured"]
    if measured is None:
        return (
            f"{number_text(report['predicted'].get('speedup'), 'x')} as fast, as the latency table predicts"
        )
    speed = f"measured {number_text(measured['speedup'], 'x')} as fast"
    ends = finite([measured.get("low"), measured.get("high")])
    return f"{speed} (99 % interval {ends[0]:.2f} to {ends[1]:.2f})" if len(ends) == 2 else speed


def caveats(runs: Sequence[RunData]) -> list[str]:
    """List what a reader must know to judge the figures."""
    found = [note for run in runs for note in _caveats_of(run, f"{run.label}: " if len(runs) > 1 else "")]
    if len({run.metric for run in runs}) > 1:
        found.append("The runs have different metrics; the figure shows shares of the dense model's metric.")
    differing = [name for name, values in settings(runs)["environment"] if len(set(values)) > 1]
    differing = [name for name in differing if name != "load average"]
    if differing:
        found.append(
            f"The runs were measured in different environments ({list_text(differing)}). Each speedup refers "
            "to the dense model in the run's own environment."
        )
    return found


def _caveats_of(run: RunData, prefix: str) -> list[str]:
    found = []
    if unmeasured := [report["target"]["name"] for report in run.reports if report["measured"] is None]:
        found.append(
            f"The speedup of {list_text(unmeasured)} was not measured: it is what the latency table predicts."
        )
    far = [
        row
        for row in deviation_rows([run])
        if row["basis"] == "measured" and abs(row["deviation"]) > PAPER_DEVIATION
    ]
    for row in far:
        word = "faster" if row["deviation"] > 0 else "slower"
        found.append(f"{row['name']} is {abs(row['deviation']):.1f} % {word} than its target.")
    measurements = {report["target"]["name"]: report["measured"] or {} for report in run.reports}
    if competition := competition_text(measurements):
        found.append(f"{competition[0].upper()}{competition[1:]}.")
    environment = run.environment
    busy = finite([environment.get("load_average"), environment.get("cores")])
    if environment.get("clock") == "cpu":
        found.append("Times are CPU time of the process, which other work on the machine disturbs little.")
    elif len(busy) == 2 and busy[0] > 0.5 * busy[1]:
        found.append(
            f"The machine was busy when the latency table was measured: its load was {busy[0]:g} on "
            f"{busy[1]:g} cores. Wall times are then less certain."
        )
    if chosen := [r["target"]["name"] for r in run.reports if r["target"].get("kind") == "recover"]:
        found.append(
            f"The speed of {list_text(chosen)} was chosen by the metric on the validation data, which is "
            "slightly too good there. Evaluate on other data for an unbiased figure."
        )
    return [prefix + note for note in found]


Setting = tuple[str, list[str]]
"""Name of a setting, and its value in each run."""


def settings(runs: Sequence[RunData]) -> dict[str, list[Setting]]:
    """Return the environment, versions and options of each run as text, by section."""
    environments = [run.environment for run in runs]
    details = [mapping(environment.get("details")) for environment in environments]
    versions = [
        {**mapping(run.environment.get("versions")), **mapping(run.reports[0].get("versions"))}
        for run in runs
    ]
    names = {
        "device_name": "machine",
        "device": "device",
        "capability": "instruction set",
        "cores": "cores",
        "system": "system",
        "engine": "engine",
        "dtype": "data type",
        "threads": "threads",
        "batch_size": "batch size",
        "sequence_length": "tokens per input",
        "clock": "clock",
        "load_average": "load average",
    }
    asked = {
        "model": "dense model",
        "task": "task",
        "mode": "mode",
        "method": "method",
        "search": "search",
        "loss": "loss of the search",
        "prior": "prior",
        "calibration_samples": "calibration samples",
        "preset": "preset",
        "seed": "seed",
    }
    return {
        "environment": _table(environments, names) + _table(details, _all_keys(details)),
        "versions": _table(versions, _all_keys(versions)),
        "options": _table([{"seed": run.reports[0].get("seed"), **run.options} for run in runs], asked),
    }


def _all_keys(values: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the keys of all dictionaries, which are their own names."""
    return {key: key.replace("_", " ") for each in values for key in each}


def _table(values: Sequence[dict[str, Any]], names: dict[str, str]) -> list[Setting]:
    """Return one setting for each name that at least one run has a value for."""
    rows = [(name, [_text(each.get(key)) for each in values]) for key, name in names.items()]
    return [(name, texts) for name, texts in rows if any(text != NONE for text in texts)]


def _text(value: Any) -> str:
    if value is None or value in ("", []):
        return NONE
    return list_text(value) if isinstance(value, list) else str(value)


def stage_times(run: RunData) -> list[tuple[str, str]]:
    """Return how long each stage took, up to the member that was finished last."""
    spent = [report.get("seconds") or {} for report in run.reports]
    longest: dict[str, float] = max(spent, key=lambda each: sum(finite(each.values())), default={})
    return [(stage, duration_text(seconds)) for stage, seconds in longest.items() if finite([seconds])]


def commands(run: RunData) -> list[str]:
    """Return the commands or calls that made the members, each once."""
    return list(dict.fromkeys(str(report["command"]) for report in run.reports if report.get("command")))

"""Fit: measure the whole model, and correct the levels by what was measured, at most three times.

Fit only chooses levels. The speedup that is reported is measured at the end, on the finished model.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from spdy_search import FitRound, InfeasibleBudget, Measurement, fit_budget

from ziplm.errors import UnreachableTarget
from ziplm.stages.choices import SECONDS, Choices, Levels
from ziplm.stages.measure import Measured

Total = Callable[[Levels], Measurement]
"""Measures a model with these levels, in seconds on the scale of the latency table, with a 99 % interval."""
Explain = Callable[[str], None]
"""Takes the reason for the next measurement."""
Speed = Callable[..., str]
"""Formats the seconds of a model as its target states them, and the ends of their interval if given."""
ROUNDS = 3
ROUGH_ROUNDS, ROUGH_SHARE = 10, 0.4  # rounds of one measurement, and its share of the time limit
CERTAIN = 1.96  # standard deviations: an interval of 95 %
DEVIATIONS = 2.58  # an interval of 99 %
TOLERANCE = 0.01


@dataclass(frozen=True)
class Fitted:
    """The result of a fit.

    Attributes:
        levels: one level for each branch.
        rounds: the measurements on the way, each with the measured speedup ("speedup") and the seconds that
            the table predicts ("predicted_seconds"); empty if nothing was measured.
    """

    levels: tuple[int, ...]
    rounds: list[dict[str, float]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Fitted":
        """Make a result from the values of `to_dict`."""
        return cls(tuple(values["levels"]), values["rounds"])


def fit_levels(
    choices: Choices,
    levels: Levels,
    prior: str,
    budgets: Mapping[str, float],
    measure_levels: Callable[[Levels], Measured],
    *,
    absolute: bool = False,
    say: Explain | None = None,
) -> Fitted:
    """Correct levels by up to three measurements of the whole model, so that it becomes as fast as required.

    Args:
        choices: what `levels` were chosen from.
        levels: the levels that the search found.
        prior: the prior that says which correction does the least harm.
        budgets: budgets by name of the cost; the seconds are those of the whole model, on the scale of the
            latency table.
        measure_levels: measures the model with these levels beside the dense model.
        absolute: whether the budget is in measured seconds, as for a latency target. Otherwise the measured
            speedup counts, so that it does not matter if the machine is slower now than for the table.
        say: called with one line before each measurement after the first: why there is another one.

    Raises:
        UnreachableTarget: if even the smallest sizes are too slow when they are measured.
    """
    rounds: list[dict[str, float]] = []
    reasons: list[str] = []  # said when the next measurement begins; there may be none

    def total(candidate: Levels) -> Measurement:
        if reasons and say is not None:
            say(f"fit: measuring {reasons.pop()}")
        measured = measure_levels(candidate)
        predicted = choices.seconds(candidate)
        rounds.append({"predicted_seconds": predicted, "speedup": measured.speedup})
        seconds = measured.seconds if absolute else choices.dense_seconds / measured.speedup
        # The interval of the speedup serves for both: it is the wider one, with the dense model's noise. What
        # it owes to other processes is a shared error: they are there in the next measurement as well.
        doubt = 1 + measured.doubt
        fastest = min(1.0, measured.speedup / measured.high * doubt)
        slowest = max(1.0, measured.speedup / measured.low / doubt)
        shared = math.log(doubt) / DEVIATIONS
        return Measurement(seconds, seconds * fastest, seconds * slowest, confidence=0.99, shared=shared)

    if SECONDS in budgets:  # limits of size need no measurement
        correct = _fit_uniform if choices.uniform else _fit_each
        speed = _milliseconds if absolute else partial(_speedup, choices.dense_seconds)
        levels = correct(choices, levels, prior, budgets, total, reasons.append, speed)
    return Fitted(tuple(int(level) for level in levels), rounds)


def _milliseconds(*seconds: float) -> str:
    """Format seconds in the unit of a latency target, and an interval as well if its ends are given."""
    value, *ends = (f"{1e3 * each:.4g} ms" for each in seconds)
    return f"{value} [{', '.join(ends)}]" if ends else value


def _speedup(dense_seconds: float, *seconds: float) -> str:
    """Format seconds as a speedup, and an interval as well if its ends are given."""
    value, *ends = (f"{dense_seconds / each:.2f}" for each in seconds)
    return f"{value}x [{', '.join(reversed(ends))}]" if ends else f"{dense_seconds / seconds[0]:.4g}x"


def _reason(rounds: int, last: FitRound, target: float, speed: Speed) -> str:
    """Say which measurement follows from the last round, and why."""
    half = CERTAIN * last.deviation
    expected = speed(last.expected, last.expected - half, last.expected + half)
    measurements = "the measurement" if rounds == 1 else f"{rounds} measurements"
    known = f"{measurements} and the latency table together give {expected} at 95 %"
    if last.following == "same":
        return f"the same model again: {known}, which is not certain enough for {speed(target)}"
    size = "smaller" if last.following == "cheaper" else "larger"
    if abs(last.expected - target) <= half:  # it is corrected nevertheless, since the miss is not small
        return f"a {size} model: {known}, more than 1 % off the {speed(target)} that is wanted"
    return f"a {size} model: {known}, and {speed(target)} is wanted"


def _fit_each(
    choices: Choices,
    levels: Levels,
    prior: str,
    budgets: Mapping[str, float],
    total: Total,
    explain: Explain,
    speed: Speed,
) -> Levels:
    """Correct the levels branch by branch, with the least harm."""
    problem = choices.problem(prior, budgets)
    count = itertools.count(1)
    try:
        found = fit_budget(
            problem,
            levels,
            total,
            budgets[SECONDS],
            ROUNDS,
            cost=SECONDS,
            tolerance=TOLERANCE,
            final=False,  # the finished model is measured later
            progress=lambda last: explain(_reason(next(count), last, budgets[SECONDS], speed)),
        )
    except InfeasibleBudget as error:
        raise _unreachable(error) from error
    return found.levels


def _fit_uniform(
    choices: Choices,
    levels: Levels,
    prior: str,
    budgets: Mapping[str, float],
    total: Total,
    explain: Explain,
    speed: Speed,
) -> Levels:
    """Solve again for sizes that all layers share, with the budget corrected by what was measured.

    Sizes whose interval contains the budget are kept, since the difference may be noise.
    """
    tried: list[tuple[Measurement, tuple[int, ...]]] = []
    for _ in range(ROUNDS):
        measured = total(levels)
        tried.append((measured, tuple(int(level) for level in levels)))
        if (1 - TOLERANCE) * budgets[SECONDS] <= measured.high and measured.low <= budgets[SECONDS]:
            break
        predicted = choices.seconds(levels)
        allowed = predicted + budgets[SECONDS] - measured.value
        if measured.value > budgets[SECONDS]:  # common sizes are far apart: these must not be chosen again
            allowed = min(max(allowed, (1 + 1e-9) * choices.smallest_seconds), (1 - 1e-9) * predicted)
        try:
            levels = choices.solve(prior, {**budgets, SECONDS: allowed})
        except InfeasibleBudget as error:
            raise _unreachable(error) from error
        if tuple(int(level) for level in levels) in [known for _, known in tried]:
            break
        size = "smaller" if choices.seconds(levels) < predicted else "larger"
        explain(f"a {size} model: {speed(budgets[SECONDS])} is wanted")
    # The last correction may miss the budget, or not have been measured: prefer the largest that met it.
    within = [(measured.value, known) for measured, known in tried if measured.low <= budgets[SECONDS]]
    return max(within)[1] if within else levels


def _unreachable(error: InfeasibleBudget) -> UnreachableTarget:
    return UnreachableTarget(
        f"measured as a whole, the model does not reach the target: {error}", "ask for a smaller speedup"
    )

"""How well `fit_budget` meets a target when measurements are noisy and the table is wrong.

A part of bench/spdy.py. The truth is simulated, so that it is known how far the result really is from the
target, and how much harm was added. "last" is the rule of version 0.1, which corrects by the last measurement
alone and returns the last correction.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
from harness import print_table
from numpy.typing import NDArray
from spdy_search import Measurement, Problem, fit_budget, solve
from spdy_tables import latency_problem

Levels = NDArray[np.int64]

Z99 = 2.576
FIXED = 0.1  # share of the target outside all modules
OWN_ERROR = 0.05  # of the table, for each level of each module
TOLERANCE = 0.01
ROUNDS = 3
NOISES = (0.002, 0.01, 0.03, 0.05)
BIASES = (0.0, 0.05, 0.10)
LOADS = (0.0, 0.03)


class Machine:
    """A simulated machine, on which the table of a problem is wrong.

    Args:
        problem: The problem with the table.
        bias: Common relative error of the table; its sign is random.
        noise: Relative standard deviation of measurements, which their intervals tell.
        load: Relative standard deviation of a further error of each measurement, which they do not tell.
        seed: Seed of all errors.
    """

    def __init__(self, problem: Problem, bias: float, noise: float, load: float, seed: int) -> None:
        rng = np.random.default_rng([seed, 3])
        self._rng, self._noise, self._load = rng, noise, load
        (budget,) = problem.budgets.values()
        self.target = budget / (1 - FIXED)
        factor = 1 + bias * rng.choice([-1, 1])
        self._fixed = float(factor * FIXED * self.target)
        (costs,) = problem.costs.values()
        self._costs = [factor * row * np.exp(rng.normal(0, OWN_ERROR, len(row))) for row in costs]

    def true(self, levels: Levels) -> float:
        """Return the true total."""
        chosen = (float(row[level]) for row, level in zip(self._costs, levels, strict=True))
        return self._fixed + math.fsum(chosen)

    def measure(self, levels: Levels) -> Measurement:
        """Return a noisy measurement with its 99 % interval."""
        value = self.true(levels) * math.exp(
            self._rng.normal(0, self._noise) + self._rng.normal(0, self._load)
        )
        half = Z99 * self._noise * value
        return Measurement(value, value - half, value + half)


def last_measurement(problem: Problem, levels: Levels, machine: Machine) -> Levels:
    """Correct by the last measurement alone, and return the last correction."""
    for _ in range(ROUNDS):
        measured = machine.measure(levels).value
        if (1 - TOLERANCE) * machine.target <= measured <= machine.target:
            break
        levels = _corrected(problem, levels, measured, machine.target)
    return levels


def _corrected(problem: Problem, levels: Levels, measured: float, target: float) -> Levels:
    """Correct levels by a single measurement, as if it were exact."""
    return fit_budget(problem, levels, lambda _: measured, target, rounds=1, final=False).levels


def pooled(problem: Problem, levels: Levels, machine: Machine) -> Levels:
    """Use all measurements and their intervals."""
    return fit_budget(
        problem, levels, machine.measure, machine.target, ROUNDS, tolerance=TOLERANCE, final=False
    ).levels


def knowing_truth(problem: Problem, levels: Levels, machine: Machine, total: float) -> Levels:
    """Correct by the truth, in as many rounds as it takes."""
    return fit_budget(
        problem, levels, machine.true, total, 10, fixed=FIXED * machine.target, final=False
    ).levels


RULES: dict[str, Callable[[Problem, Levels, Machine], Levels]] = {
    "last": last_measurement,
    "pooled": pooled,
}


def bench_fit(repeats: int) -> None:
    """Print how often the true total is within 3 % of the target, and the added harm."""
    rows = []
    overall: dict[str, list[tuple[float, float]]] = {name: [] for name in RULES}
    for load, bias, noise in itertools.product(LOADS, BIASES, NOISES):
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in RULES}
        for seed in range(repeats):
            problem = latency_problem(24, 2 + seed % 3, seed)
            start = solve(problem)
            for name, rule in RULES.items():
                machine = Machine(problem, bias, noise, load, seed)
                chosen = rule(problem, start, machine)
                miss = machine.true(chosen) / machine.target - 1
                same_speed = knowing_truth(problem, start, machine, machine.true(chosen))
                results[name].append((miss, problem.prior(chosen) / problem.prior(same_speed) - 1))
        row = [f"{load:.0%}, {bias:.0%}, {noise:.1%}"]
        for name, values in results.items():
            overall[name] += values
            row += _figures(values)
        rows.append(row)
    rows.append(["all", *itertools.chain(*(_figures(values) for values in overall.values()))])
    columns = [[f"{name}: ok", "rms miss", "harm"] for name in RULES]
    print_table(
        f"fit_budget: simulated machines, {repeats} each; at most {ROUNDS} measurements",
        ["load, table, noise", *itertools.chain(*columns)],
        rows,
        note="load: error of a measurement beyond its interval; table: common error; noise: within the "
        "interval. ok: the true total is within 3 % of the target. harm: prior relative to that of a fit to "
        "the same true total which knows the truth. last: the rule of version 0.1; pooled: fit_budget.",
    )


def _figures(values: list[tuple[float, float]]) -> list[str]:
    miss, harm = np.array(values).T
    return [
        f"{np.mean(np.abs(miss) <= 0.03):.0%}",
        f"{100 * math.sqrt(np.mean(miss**2)):.1f} %",
        f"{100 * np.mean(harm):+.1f} %",
    ]

"""spdy-search: its solvers against a bucketed dynamic program, and its search against the paper's.

python bench/spdy.py            # all tables
python bench/spdy.py solve      # the solvers only
python bench/spdy.py search --seeds 5 --first 100
python bench/spdy.py methods    # the other search methods
python bench/spdy.py tail       # the slowest of many random problems
python bench/spdy.py fit        # fit_budget on simulated machines
python bench/spdy.py threads    # CPU time on a busy machine, with and without OMP_NUM_THREADS
"""

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable

import numpy as np
from harness import announce, cpu_seconds, print_table
from numpy.typing import NDArray
from spdy_fit import bench_fit
from spdy_search import Problem, search, solve, solve_batch
from spdy_tables import latency_problem
from spdy_tail import bench_tail
from spdy_threads import bench_threads

BUCKETS = 10_000
BATCH = 64


def bucket_program(problem: Problem, weights: NDArray[np.float64]) -> list[int]:
    """Solve by the usual dynamic program: times are rounded up to 10,000 buckets."""
    (rows,), (budget,) = problem.costs.values(), problem.budgets.values()
    best = np.zeros(BUCKETS + 1)
    trail = []
    for weight, cost, prior in zip(weights, rows, problem.priors, strict=True):
        steps = np.ceil(cost / budget * BUCKETS).astype(int)
        new = np.full(BUCKETS + 1, np.inf)
        choice = np.zeros(BUCKETS + 1, dtype=int)
        for level, step in enumerate(steps):
            if step <= BUCKETS:
                total = best[: BUCKETS + 1 - step] + weight * prior[level]
                better = total < new[step:]
                new[step:][better] = total[better]
                choice[step:][better] = level
        best = new
        trail.append((steps, choice))
    left, levels = BUCKETS, []
    for steps, choice in reversed(trail):
        levels.append(int(choice[left]))
        left -= steps[levels[-1]]
    return levels[::-1]


def bench_solve(seeds: int) -> None:
    """Measure CPU time and quality of `solve` and `solve_batch`."""
    rows = []
    for modules in (24, 48, 64, 160):
        for speedup in (2, 8):
            results = [solve_figures(latency_problem(modules, speedup, seed), seed) for seed in range(seeds)]
            base, one, batch = (
                statistics.median(column) for column in zip(*(r[:3] for r in results), strict=True)
            )
            excess = np.concatenate([r[3] for r in results])
            gaps = np.concatenate([r[4] for r in results])
            rows.append(
                [
                    f"{modules} modules, {speedup}x",
                    f"{1e3 * base:.1f}",
                    f"{1e3 * one:.2f}",
                    f"{statistics.median(r[0] / r[1] for r in results):.0f}x",
                    f"{1e6 * batch:.0f}",
                    f"{statistics.median(r[0] / r[2] for r in results):.0f}x",
                    f"{100 * gaps.mean():.3f} / {100 * gaps.max():.2f}",
                    f"{100 * excess.mean():.3f} / {100 * excess.max():.2f}",
                ]
            )
    print_table(
        f"CPU time for one problem, medians of {seeds} problems",
        ["", "DP ms", "solve ms", "ratio", "batch µs", "ratio", "batch gap %", "DP gap %"],
        rows,
        note=f"DP: {BUCKETS:,} buckets, rounded up. batch: solve_batch of {BATCH}, per problem. "
        "gap: excess of the total prior over that of solve, mean / worst.",
    )


def solve_figures(
    problem: Problem, seed: int
) -> tuple[float, float, float, NDArray[np.float64], NDArray[np.float64]]:
    """Return seconds per problem of the DP, solve and solve_batch, and the gaps of the DP and the batch."""
    weights = np.random.default_rng([seed, 1]).random((BATCH, problem.modules))
    solve_batch(problem, weights)  # computes tables that depend only on the problem
    few = weights[:4]
    base = cpu_seconds(lambda: bucket_program(problem, few[0]), repeats=5)
    one = cpu_seconds(lambda: [solve(problem, row) for row in few], repeats=5) / len(few)
    batch = cpu_seconds(lambda: solve_batch(problem, weights), repeats=15) / BATCH
    best = [problem.prior(solve(problem, row), row) for row in weights]
    near = [problem.prior(x, row) for x, row in zip(solve_batch(problem, weights), weights, strict=True)]
    bucketed = [problem.prior(bucket_program(problem, row), row) for row in few]
    return base, one, batch, np.divide(bucketed, best[: len(few)]) - 1, np.divide(near, best) - 1


def hidden_loss(problem: Problem, seed: int, kind: str) -> Callable[[NDArray[np.int64]], float]:
    """Return a loss that differs from the sum of the priors in a way that the search does not know.

    The kind "faithful" differs only by 15 % of noise per module, 5 % per level, and weak interactions of
    random pairs. All others have hidden log-normal sensitivities, two thirds of which lie within a factor of
    7. "pairs" adds interactions of random pairs of modules; "curved" also raises each module's prior to a
    hidden power; "saturating" also takes a logarithm.
    """
    rng = np.random.default_rng([seed, 2])
    modules = problem.modules
    scale = max(float(row.max()) for row in problem.priors)
    faithful = kind == "faithful"
    sensitivities = np.exp(rng.normal(0, 0.15 if faithful else 1, modules))
    powers = rng.uniform(0.6, 1.6, modules) if kind in ("curved", "saturating") else np.ones(modules)
    harm = [
        s * scale * (row / scale) ** p
        for s, p, row in zip(sensitivities, powers, problem.priors, strict=True)
    ]
    first, second = rng.integers(0, modules, (2, 2 * modules))
    strengths = rng.normal(0.0 if faithful else 0.15, 0.05 if faithful else 0.25, 2 * modules)
    strengths *= kind != "weights"
    if faithful:
        harm = [row * np.exp(rng.normal(0, 0.05, len(row))) for row in harm]

    def loss(levels: NDArray[np.int64]) -> float:
        each = np.array([row[level] for row, level in zip(harm, levels, strict=True)])
        total = float(each.sum() + strengths @ np.sqrt(each[first] * each[second]))
        return math.log1p(100 * max(total, 0.0) / (modules * scale)) if kind == "saturating" else total

    return loss


SIZES = ((24, 2), (24, 4), (48, 2), (48, 4))
KINDS = ("weights", "pairs", "curved", "saturating", "faithful")
CHECKPOINTS = (1, 25, 50, 100)


def bench_search(seeds: range) -> None:
    """Compare up to 100 evaluations of the default method with 1000 of the paper's."""
    rows = []
    for (modules, speedup), kind in itertools.product(SIZES, KINDS):
        ratios, used = [], []
        began = time.process_time()
        for seed in seeds:
            problem, loss, paper = reference(modules, speedup, kind, seed)
            history = search(problem, loss, evaluations=CHECKPOINTS[-1], seed=seed).history
            used.append(len(history))
            best = np.minimum.accumulate([evaluation.loss for evaluation in history]) / paper
            ratios.append([best[min(count, len(best)) - 1] for count in CHECKPOINTS])
        mean, final = np.mean(ratios, axis=0), np.array(ratios)[:, -1]
        rows.append(
            [
                f"{modules}, {speedup}x, {kind}",
                *(f"{value:.3f}" for value in mean),
                f"{np.mean(used):.0f}",
                f"{np.median(final):.3f}",
                f"{final.max():.3f}",
                f"{np.count_nonzero(final > 1)} of {len(final)}",
            ]
        )
        print(" ".join(rows[-1]), f"({time.process_time() - began:.0f} s)", flush=True)
    print_table(
        f"loss of direct / ziplm with 1000 evaluations, seeds {seeds[0]} to {seeds[-1]}; below 1 is better",
        ["modules, target, loss", *(f"after {n}" for n in CHECKPOINTS), "used", "median", "worst", "above 1"],
        rows,
        note="after n: best of n evaluations, mean over the seeds; the first is the prior's solution. "
        "used: evaluations until patience ran out, mean. "
        f"The last three columns: single searches with {CHECKPOINTS[-1]}.",
    )


def bench_methods(seeds: range) -> None:
    """Compare the losses of the other methods with those of the paper's method with 1000 evaluations."""
    contenders: dict[str, dict[str, object]] = {
        "direct 300": {"evaluations": 300},
        "ziplm 3000": {"method": "ziplm", "evaluations": 3000},
        "evolution 1000": {"method": "evolution", "evaluations": 1000},
        "uniform": {"method": "uniform"},
    }
    rows = []
    for (modules, speedup), kind in itertools.product(((24, 2), (64, 4)), KINDS):
        ratios: dict[str, list[float]] = {name: [] for name in contenders}
        for seed in seeds:
            problem, loss, paper = reference(modules, speedup, kind, seed)
            for name, settings in contenders.items():
                ratios[name].append(search(problem, loss, seed=seed, **settings).loss / paper)  # type: ignore[arg-type]
        means = [f"{statistics.mean(values):.3f}" for values in ratios.values()]
        rows.append([f"{modules}, {speedup}x, {kind}", *means])
    print_table(
        f"loss / loss of ziplm with 1000 evaluations, means of seeds {seeds[0]} to {seeds[-1]}",
        ["modules, target, loss", *contenders],
        rows,
        note="The number after a method is its limit of evaluations.",
    )


def reference(
    modules: int, speedup: float, kind: str, seed: int
) -> tuple[Problem, Callable[[NDArray[np.int64]], float], float]:
    """Return a problem, its true loss, and the loss of the paper's method after 1000 evaluations."""
    problem = latency_problem(modules, speedup, seed)
    loss = hidden_loss(problem, seed, kind)
    return problem, loss, search(problem, loss, evaluations=1000, method="ziplm", seed=seed).loss


def main() -> None:
    """Run the part named on the command line, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "part",
        nargs="?",
        choices=["solve", "search", "methods", "tail", "fit", "threads"],
        help="a single table",
    )
    parser.add_argument("--seeds", type=int, default=3, help="random problems per row (3)")
    parser.add_argument("--first", type=int, default=0, help="first seed of the searches (0)")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    announce("spdy-search", "spdy-search", "numpy", "scipy")
    if arguments.part in (None, "solve"):
        bench_solve(arguments.seeds)
    if arguments.part in (None, "search"):
        bench_search(seeds)
    if arguments.part in (None, "methods"):
        bench_methods(seeds)
    if arguments.part in (None, "tail"):
        bench_tail()
    if arguments.part in (None, "fit"):
        bench_fit(4 * arguments.seeds)
    if arguments.part in (None, "threads"):
        bench_threads(arguments.seeds)


if __name__ == "__main__":
    main()

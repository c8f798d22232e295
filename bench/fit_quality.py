"""ziplm: does fit keep the quality? What it makes of the search's levels, beside a search at the same speed.

    python bench/fit_quality.py sst2 --data FOLDER            # takes minutes; resumes if interrupted

For each target, the search chooses levels, and fit corrects them by measurements. These are simulated: a
model takes the time that the latency table predicts, times FACTORS, as if the table were off by so much. A
second search, with the predicted time of the fitted levels as its target, says what could have been chosen
at the same speed. Both are judged by their mean KL divergence from the dense model. The experiments, the
dense models and FOLDER are those of bench/oneshot.py.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from harness import announce, print_table
from models import BUILD
from oneshot import Bench, opened
from oneshot_experiments import EXPERIMENTS
from oneshot_judge import Judge
from ziplm.files import read_json, write_json
from ziplm.options.targets import Target
from ziplm.pipelines import common_steps, target_steps
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.oneshot import prune_model
from ziplm.pipelines.values import Pruned, Start
from ziplm.runs.folder import Run
from ziplm.stages.choices import Choices, Levels
from ziplm.stages.fit import fit_levels
from ziplm.stages.measure import Measured
from ziplm.stages.search import Found

# Tables were off by up to 6 % in the runs of docs/results.md.
FACTORS = (0.95, 1.05)
INTERVAL = 0.01  # half of the interval of a simulated measurement, relative to it


def simulated(choices: Choices, factor: float) -> Callable[[Levels], Measured]:
    """Return a measurement that finds a model to take `factor` times the seconds that the table predicts."""

    def measure_levels(levels: Levels) -> Measured:
        seconds = factor * choices.seconds(levels)
        speedup = choices.dense_seconds / seconds
        ends = (1 - INTERVAL) * speedup, (1 + INTERVAL) * speedup
        return Measured(speedup, *ends, seconds, choices.dense_seconds)

    return measure_levels


def compare_at(start: Start, pruned: Pruned, judge: Judge, target: float, run: Run) -> list[dict[str, float]]:
    """Return a row for each factor: the divergences of the fitted levels, and of a search at their speed."""
    choices = pruned.choices

    def search_for(speedup: float) -> Found:
        state = run.folder / "state" / "searches" / f"{speedup:.6g}x"
        return target_steps.search(start, pruned, Target("speedup", speedup), state, run)

    def judged(levels: Levels) -> dict[str, float]:
        return judge.shrunk(choices.chosen(levels), pruned.traces_in_order())

    found = search_for(target)
    budgets = pruned.budgets(Target("speedup", target))
    before = judged(found.levels)
    rows = []
    for factor in FACTORS:
        fitted = fit_levels(choices, found.levels, found.prior, budgets, simulated(choices, factor))
        reached = choices.dense_seconds / choices.seconds(fitted.levels)
        again = judged(search_for(reached).levels)
        row = {"target": target, "factor": factor, "predicted": reached, "measurements": len(fitted.rounds)}
        for name, value in judged(fitted.levels).items():
            row |= {
                f"searched: {name}": before[name],
                f"fitted: {name}": value,
                f"again: {name}": again[name],
            }
        rows.append(row)
    return rows


def run_seed(experiment: str, data: Path, seed: int, most: int | None, targets: list[float]) -> None:
    """Compare at all targets with one seed, as far as results are missing."""
    bench = Bench(experiment, data, seed, most, targets)
    options = bench.options("default")
    folder = bench.folder / f"seed{seed}" / "fit"
    with opened(options) as run:
        start = load_start(options, run)
        table = common_steps.profile(start, run)
        dense = common_steps.make_choices(start, start.dense, table)
        pruned = prune_model(start, start.dense, dense, start.samples, options.seed, run)
        files = {name: path.format(**bench.places) for name, path in bench.experiment.splits.items()}
        judge = Judge(start, files, bench.experiment.most)
        for target in bench.experiment.targets:
            path = folder / f"{target:g}x.json"
            if not path.exists():
                write_json(path, {"rows": compare_at(start, pruned, judge, target, run)})


def report(experiment: str) -> None:
    """Print the divergences, means over the seeds and, in the last line, over all targets and factors."""
    paths = sorted((BUILD / "oneshot" / experiment).glob("seed*/fit/*x.json"))
    rows = [row for path in paths for row in read_json(path)["rows"]]
    splits = [
        name.removeprefix("fitted: ") for name in rows[0] if name.startswith("fitted: ") and "kl" in name
    ]
    for split in splits:
        lines = []
        for target in sorted({row["target"] for row in rows}):
            for factor in FACTORS:
                own = [row for row in rows if (row["target"], row["factor"]) == (target, factor)]
                kinds = [
                    mean(row[f"{kind}: {split}"] for row in own) for kind in ("searched", "fitted", "again")
                ]
                lines.append(
                    [
                        f"{target:g}x",
                        f"{factor:g}",
                        *(f"{kl:.4f}" for kl in kinds),
                        f"{kinds[1] / kinds[2] - 1:+.1%}",
                    ]
                )
        logs = [math.log(row[f"fitted: {split}"] / row[f"again: {split}"]) for row in rows]
        lines.append(["all", "", "", "", "", f"{math.expm1(mean(logs)):+.1%}"])
        seeds = len({path.parents[1].name for path in paths})
        print_table(
            f"{experiment}: {split}, mean of {seeds} seeds",
            ["target", "time / predicted", "searched", "fitted", "searched at that speed", "change"],
            lines,
        )


def main() -> None:
    """Run what is missing, then print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=list(EXPERIMENTS))
    parser.add_argument("--data", type=Path, required=True, help="folder with the published datasets")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds (0)")
    parser.add_argument("--targets", type=float, nargs="+", default=(2, 3, 4, 6), help="speedups (2 3 4 6)")
    parser.add_argument("--most", type=int, help="samples of each split that models are judged on (all)")
    options = parser.parse_args()
    announce(f"ziplm, fit: {options.experiment}", "ziplm", "torch", "transformers")
    for seed in options.seeds:
        run_seed(options.experiment, options.data, seed, options.most, options.targets)
    report(options.experiment)


if __name__ == "__main__":
    main()

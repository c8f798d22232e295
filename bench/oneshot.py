"""ziplm, one-shot: the default against uniform pruning and the paper's configuration, at equal time.

    python bench/oneshot.py sst2 --data FOLDER            # minutes to hours; goes on where it was
    python bench/oneshot.py sst2 --data FOLDER --report   # only prints what there is

The dense models are those of bench/models.py, and FOLDER is the same. All methods get the same latency table
and targets; nothing is retrained. What was found is kept under build/oneshot, one file for each model.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import ziplm
from harness import announce, print_table
from models import BUILD
from obs_structured import Trace
from spdy_search import search
from transformers import PreTrainedModel
from ziplm.stages.calibrate import gather_inputs
from ziplm.options.options import Options
from ziplm.cli.demo import Reviews
from ziplm.files import read_json, write_json, written_whole
from ziplm.tasks.heads import Classification
from ziplm.pipeline import Pipeline
from ziplm.stages.profile import latency_table
from ziplm.runs.progress import Bars
from ziplm.stages.prune import prune_branch
from ziplm.runs.opening import open_run
from ziplm.stages.choices import Choices
from ziplm.tasks import Features, Source, Task

PRIORS = ("factored", "scalar", "stream", "own")
FEW = 1000  # samples of the second split on which single priors are compared


@dataclass(frozen=True)
class Experiment:
    """A dense model, its data, and what is compared on it."""

    model: str
    task: str
    train: str
    splits: dict[str, str]
    targets: tuple[float, ...]
    sequence_length: int = 128
    search_samples: int = 128
    most: int | None = None  # samples of a split that models are judged on, from its beginning


EXPERIMENTS = {
    "sst2": Experiment(
        "minilm-sst2",
        "sst2",
        "{build}/data/sst2/train.tsv",
        {"dev": "{data}/SST-2/dev.tsv", "held-out": "{build}/data/sst2/heldout.tsv"},
        (1.5, 2, 3, 4, 6, 8),
    ),
    "mrpc": Experiment(
        "minilm-mrpc",
        "mrpc",
        "{data}/MRPC/train.tsv",
        {"dev": "{data}/MRPC/dev.tsv"},
        (2, 3, 4),
    ),
    "gpt2": Experiment(
        "gpt2-wikitext2",
        "causal-lm",
        "{data}/wikitext-2/train.txt",
        {"test": "{data}/wikitext-2/test.txt"},
        (1.5, 2, 3),
        search_samples=32,
        most=400,
    ),
}
# Calibrated on other text than the model was trained on.
EXPERIMENTS["gpt2-zero-shot"] = replace(EXPERIMENTS["gpt2"], train="{build}/data/imdb.txt")


class Bench:
    """One experiment with one seed."""

    def __init__(self, name: str, data: Path, seed: int) -> None:
        self.experiment = EXPERIMENTS[name]
        self.folder = BUILD / "oneshot" / name
        self.seed = seed
        self.places = {"build": str(BUILD), "data": str(data)}
        self.model_folder = BUILD / "models" / self.experiment.model

    def config(self, method: str) -> Options:
        """A run of `ziplm compress` that measures nothing: all methods share a latency table."""
        first = next(iter(self.experiment.splits.values()))
        return Options(
            model=str(self.model_folder),
            task=self.experiment.task,
            output=str(self.folder / f"seed{self.seed}" / method),
            speedup=self.experiment.targets,
            train_file=self.experiment.train.format(**self.places),
            validation_file=first.format(**self.places),
            latency_table=str(self.table_file()),
            sequence_length=self.experiment.sequence_length,
            threads=1,
            method="ziplm" if method == "paper" else "default",
            search_samples=self.experiment.search_samples,
            seed=self.seed,
        )

    def table_file(self) -> Path:
        """The latency table of the dense model, measured once, in CPU time."""
        path = self.folder.with_name(self.experiment.model) / "latency.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            setting = Options(
                "m", "t", "o", threads=1, clock="cpu", sequence_length=self.experiment.sequence_length
            ).setting
            latency_table(ziplm.load(self.model_folder), setting, max_seconds=120).save(path)
        return path

    def run(self, methods: Sequence[str]) -> None:
        """Make and judge whatever is missing."""
        with open_run(self.config("default")) as run:
            pipeline = Pipeline(self.config("default"), run, Bars())
            files = {name: path.format(**self.places) for name, path in self.experiment.splits.items()}
            judge = Judge(pipeline, files, self.experiment.most)
            for prior in PRIORS if "priors" in methods else ():
                for target, removed in self._by_prior(pipeline, prior):
                    judged = partial(_judged, judge, pipeline, removed, None, few=True)
                    self._row(f"prior-{prior}", target, judged)
            if "uniform" in methods:
                self._uniform(pipeline, judge)
        for method in ("default", "paper"):
            if method in methods:
                for member in ziplm.compress(config=self.config(method), progress=True):
                    target = float(member.metrics["target"]["value"])
                    self._row(method, target, partial(_judged_folder, judge, member.folder))

    def _row(self, method: str, target: float, judge: Callable[[], dict[str, float]]) -> None:
        path = self.folder / f"seed{self.seed}" / "rows" / f"{method}-{target:g}x.json"
        if not path.exists():
            write_json(path, {"method": method, "target": target, "seed": self.seed, **judge()})
            print(path.name, {k: v for k, v in read_json(path).items() if isinstance(v, float)}, flush=True)

    def _by_prior(self, pipeline: Pipeline, prior: str) -> Iterator[tuple[float, list[int]]]:
        choices = pipeline.choices
        for target in self.experiment.targets:
            levels = choices.solve(prior, {"seconds": choices.dense_seconds / target})
            yield target, choices.removed(levels)

    def _uniform(self, pipeline: Pipeline, judge: "Judge") -> None:
        """The same share of every module, chosen by magnitude or by OBS, both with a least-squares update."""
        methods = {"magnitude": "uniform-magnitude", "obs": "uniform-obs"}
        rows = self.folder / f"seed{self.seed}" / "rows"
        if all(
            (rows / f"{n}-{t:g}x.json").exists() for n in methods.values() for t in self.experiment.targets
        ):
            return
        inputs = gather_inputs(
            pipeline.model, pipeline.task, pipeline.parts[0], pipeline.modules, {}, batch_size=32
        )
        for method, name in methods.items():
            traces, priors = {}, {}
            for module in pipeline.modules:
                traces[module.name], priors[module.name] = prune_branch(
                    pipeline.model, module, inputs[module.name], None, 10**9, method=method
                )
            choices = Choices(pipeline.reachable.levels, priors, pipeline.table)
            for target in self.experiment.targets:
                problem = choices.problem("own", {"seconds": choices.dense_seconds / target})
                levels = search(problem, lambda _: 0.0, 1, method="uniform").levels
                removed = choices.removed(levels)
                self._row(name, target, partial(_judged, judge, pipeline, removed, traces))


class Judge:
    """Metric and divergence from the dense model, on every split."""

    def __init__(self, pipeline: Pipeline, files: dict[str, str], most: int | None = None) -> None:
        self.pipeline = pipeline
        self.task: Task = pipeline.task
        self.splits: dict[str, Sequence[Features]] = {}
        for name, file in files.items():
            source = Source(train_file=file, validation_file=file)
            length = pipeline.config.sequence_length
            loaded = self.task.load_splits(pipeline.model, pipeline.tokenizer, source, length)
            features = next(iter(loaded.evaluation.values()))
            self.splits[name] = [features[i] for i in range(min(most or len(features), len(features)))]
        self.reference: dict[str, list[torch.Tensor]] = {}

    def __call__(self, model: PreTrainedModel, few: bool = False) -> dict[str, float]:
        """Metrics by split; with `few`, only the divergence on a part of the last one, under its own name."""
        found: dict[str, float] = {}
        for name, features in self.splits.items():
            if few and name != list(self.splits)[-1]:
                continue
            chosen = [features[i] for i in range(min(FEW, len(features)))] if few else features
            divergence, accuracy = self.divergence(model, chosen)
            found[f"{name}, first {len(chosen)}: kl" if few else f"{name} kl"] = divergence
            if not few:
                known = self.task.metric == "accuracy"
                metric = accuracy if known else self.task.evaluate(model, chosen, 64)[self.task.metric]
                found[f"{name} metric"] = metric
        return found

    @torch.inference_mode()
    def divergence(self, model: PreTrainedModel, features: Sequence[Features]) -> tuple[float, float]:
        """Mean divergence from the dense model; of classifiers also the accuracy, from the same pass."""
        right = 0
        head, total, samples = self.task.head, 0.0, 0
        key = str(len(features))
        known = self.reference.setdefault(key, [])
        for number, (_, batch) in enumerate(self.task.batches(features, 64)):
            if number == len(known):
                known.append(head.outputs(self.pipeline.model, batch))
            outputs = head.outputs(model, batch)
            part = head.divergence(model, outputs, known[number], batch)
            total, samples = total + part.total, samples + part.samples
            if isinstance(head, Classification):
                right += int((outputs.argmax(-1) == batch["labels"]).sum())
        return total / samples, right / samples


def _judged(
    judge: Judge, pipeline: Pipeline, removed: list[int], traces: dict[str, Trace] | None, few: bool = False
) -> dict[str, float]:
    own = pipeline.traces if traces is None else traces
    modules = [levels.module.name for levels in pipeline.reachable.levels]
    return judge(ziplm.shrink(pipeline.model, removed, [own.get(name) for name in modules]), few)


def _judged_folder(judge: Judge, folder: Path) -> dict[str, float]:
    return judge(ziplm.load(folder))


def write_reviews(path: Path) -> None:
    """IMDB's reviews as text."""
    if not path.exists():
        with written_whole(path) as temporary:
            text = "\n\n".join(review.replace("<br />", " ") for review in Reviews.of("imdb").texts[:4000])
            temporary.write_text(text, encoding="utf-8")


def report(name: str) -> None:
    """Means over seeds of everything that there is, and how often the default is ahead."""
    rows = [read_json(path) for path in sorted((BUILD / "oneshot" / name).glob("seed*/rows/*.json"))]
    targets = sorted({row["target"] for row in rows})
    figures = sorted({key for row in rows for key in row if key.endswith((" metric", " kl"))})
    for figure in figures:
        lines = []
        for method in dict.fromkeys(row["method"] for row in rows):
            cells = [method]
            for target in targets:
                found = [
                    r[figure] for r in rows if (r["method"], r["target"]) == (method, target) and figure in r
                ]
                spread = f" ±{statistics.stdev(found):.3f}" if len(found) > 1 else ""
                cells.append(f"{statistics.mean(found):.4f}{spread}" if found else "")
            if any(cells[1:]):
                lines.append(cells)
        seeds = len({row["seed"] for row in rows})
        print_table(f"{name}: {figure}, mean of {seeds} seeds", ["", *(f"{t:g}x" for t in targets)], lines)
    differences(rows, targets, figures)


def differences(rows: list[dict[str, Any]], targets: list[float], figures: list[str]) -> None:
    """The default minus each other method, seed by seed."""
    table = {(row["method"], row["target"], row["seed"]): row for row in rows}
    others = [m for m in dict.fromkeys(row["method"] for row in rows) if m != "default"]
    for figure in figures:
        lines = []
        for other in others:
            cells = [str(other)]
            for target in targets:
                pairs = [
                    table["default", target, seed][figure] - row[figure]
                    for (method, at, seed), row in table.items()
                    if method == other
                    and at == target
                    and figure in row
                    and figure in table.get(("default", target, seed), {})
                ]
                cells.append(" ".join(f"{pair:+.4f}" for pair in pairs))
            if any(cells[1:]):
                lines.append(cells)
        if lines:
            print_table(
                f"default minus other, each seed: {figure}", ["", *(f"{t:g}x" for t in targets)], lines
            )


def main() -> None:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=list(EXPERIMENTS))
    parser.add_argument("--data", type=Path, required=True, help="folder with the published data sets")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=["priors", "uniform", "default", "paper"])
    parser.add_argument("--report", action="store_true", help="print what there is, run nothing")
    options = parser.parse_args()
    announce(f"ziplm, one-shot: {options.experiment}", "ziplm", "torch", "transformers")
    if not options.report:
        write_reviews(BUILD / "data" / "imdb.txt")
        for seed in options.seeds:
            Bench(options.experiment, options.data, seed).run(options.methods)
    report(options.experiment)


if __name__ == "__main__":
    main()

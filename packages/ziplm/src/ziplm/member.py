"""One target, from the search to its checkpoint: stages 4 to 7."""

import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from ziplm.checkpoint import save
from ziplm.files import read_json, write_json
from ziplm.fit import Measured, fit_levels, measure
from ziplm.heads import is_clearly_lower, mean_divergence
from ziplm.inspection import size_on_disk
from ziplm.pipeline import Pipeline
from ziplm.recover import speedup_that_recovers
from ziplm.refit import refit, with_own_outputs
from ziplm.search import Found, find_levels
from ziplm.shrink import shrink
from ziplm.targets import Target
from ziplm.traces import InOrder

REFIT_SAMPLES = 1024
RECOVERIES, STEP_BACK = 4, 0.9  # tries to keep a share of the metric, and how far apart they are
SLOWEST = 1.01  # speedup that is still one


def check_reachable(pipeline: Pipeline, targets: Sequence[Target]) -> None:
    """Fail before the long work: data, times and all targets are looked at first."""
    pipeline.check()
    quick = pipeline.reachable
    for target in targets:  # the limits of one that has no speed yet, too
        quick.require_reachable(target.budgets(quick), f"target {target.name}")


class Member:
    """One member of the family, from the search to its checkpoint."""

    def __init__(self, pipeline: Pipeline, target: Target) -> None:
        self.pipeline, self.target = pipeline, target
        self.config, self.run, self.reporter = pipeline.config, pipeline.run, pipeline.reporter
        self.workers = pipeline.workers
        self.state = self.run.target_state(target.name)
        self.predicted_only = self.config.latency_table is not None

    def make(self) -> None:
        """All stages of a target."""
        if self.target.kind != "recover":
            self._save(*self._build(self.target))
            return
        share, limits = self.target.value, self.target.limits
        chosen = self._kept("recover.json", lambda: speedup_that_recovers(self.pipeline, share, limits))
        speedup, fastest = chosen["speedup"], STEP_BACK * self.pipeline.reachable.largest_speedup
        best: tuple[PreTrainedModel, dict[str, Any]] | None = None
        failed = False
        for attempt in range(RECOVERIES):
            self.state = self.run.target_state(self.target.name) / f"attempt{attempt}"
            small, report = self._build(Target("speedup", speedup, limits))
            kept = self.pipeline.as_good_as(report["metric"]["compressed"], chosen["wanted"])
            report["recover"] = {"wanted": chosen["wanted"], "kept": kept}
            failed = failed or not kept
            if not kept and (best is not None or speedup <= SLOWEST):
                break
            if kept:
                best = small, report
            if kept and (failed or speedup / STEP_BACK > fastest):
                break
            speedup = speedup / STEP_BACK if kept else max(SLOWEST, STEP_BACK * speedup)
        if best is None:
            self.reporter.note(f"target {self.target.name} is missed: {chosen['wanted']:.4g} was wanted")
        self._save(*(best or (small, report)))

    def _build(self, target: Target) -> tuple[PreTrainedModel, dict[str, Any]]:
        """The model for a speed or a size, and what there is to say of it."""
        pipeline = self.pipeline
        budgets = target.budgets(pipeline.choices, (pipeline.before or pipeline).reachable)
        found = Found.from_dict(self._kept("found.json", lambda: self._search(budgets).to_dict()))
        pipeline.forget_candidates()
        fitted = self._kept("fitted.json", lambda: self._fit(found, budgets, target.kind == "latency"))
        removed = pipeline.choices.removed(fitted["levels"])
        traces = InOrder(pipeline.traces, [m.module.name for m in pipeline.choices.levels])
        small, refitted = self._refit(shrink(pipeline.model, removed, traces))
        training = self.finetune(small)
        metrics = pipeline.evaluate(small, f"evaluate {self.target.name}")
        report = self._report(small, found, fitted, refitted, metrics)
        return small, report if training is None else {**report, "training": training}

    def finetune(self, small: PreTrainedModel) -> dict[str, Any] | None:
        """Train a shrunk model in place; nothing in one-shot compression."""
        return None

    def _save(self, small: PreTrainedModel, report: dict[str, Any]) -> None:
        """The checkpoint with its report, whole or not at all."""

        def add_report(folder: Path) -> None:
            self.pipeline.task.copy_extras(Path(self.config.model), folder)
            write_json(folder / "metrics.json", {**report, "bytes_on_disk": size_on_disk(folder)})

        folder, tokenizer = self.run.result_folder(self.target.name), self.pipeline.tokenizer
        self.workers.first(lambda: save(small, folder, tokenizer, also=add_report))

    def _kept(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A result from its file, or made and saved."""
        path = self.state / name
        if self.workers.missing(path):
            made = make()
            self.workers.first(lambda: write_json(path, made))
        kept: dict[str, Any] = read_json(path)
        return kept

    def _search(self, budgets: dict[str, float]) -> Found:
        pipeline, config = self.pipeline, self.config
        names = pipeline.prior_names
        self.state.mkdir(parents=True, exist_ok=True)
        with self.run.timed("search"), self.reporter.stage("search") as advance:
            search = partial(
                find_levels,
                pipeline.choices,
                budgets,
                names,
                method=config.search,
                evaluations=config.evaluations,
                seed=config.seed,
                checkpoint=self.state / "search.json",
                progress=lambda done, best: advance(done, config.evaluations),
            )
            return self.workers.led(search, pipeline.search_loss, pipeline.judge_loss)

    def _measure(self, small: PreTrainedModel, description: str) -> Measured:
        with self.run.timed("measure"), self.reporter.stage(description) as advance:
            return measure(
                self.pipeline.dense,
                small,
                self.config.setting,
                max_seconds=self.config.measure_seconds,
                progress=lambda rounds, used: advance(used, 1.0),
            )

    def _fit(self, found: Found, budgets: dict[str, float], absolute: bool) -> dict[str, Any]:
        if self.predicted_only:
            return {"levels": list(found.levels), "rounds": [], "measured": None}
        fit = partial(
            fit_levels,
            self.pipeline.model,
            self.pipeline.traces,
            self.pipeline.choices,
            found.levels,
            found.prior,
            budgets,
            lambda small: self._measure(small, "fit: measure"),
            absolute=absolute,
        )
        levels, rounds, fresh = self.workers.first(fit)
        return {"levels": list(levels), "rounds": rounds, "measured": asdict(fresh)}

    def _refit(self, small: PreTrainedModel) -> tuple[PreTrainedModel, dict[str, Any] | None]:
        """The refitted model if it is clearly closer to the dense one on samples it was not fitted to."""
        pipeline = self.pipeline
        if not self.config.refit:
            return small, None
        with self.run.timed("refit"), self.reporter.stage("refit") as advance:
            features = pipeline.parts[0]
            weights = {module.name: pipeline.token_weights(module)[0] for module in pipeline.modules}
            if self.workers.rank == 0:
                fitted = refit(
                    pipeline.model,
                    small,
                    pipeline.task,
                    features,
                    weights,
                    most_samples=REFIT_SAMPLES,
                    batch_size=self.config.calibration_batch_size,
                    progress=advance,
                )
            else:
                fitted = with_own_outputs(small)
            self.workers.spread_weights(fitted)
            unseen = [*pipeline.parts[1], *pipeline.parts[2]]
            before, after = (pipeline.divergences(model, unseen) for model in (small, fitted))
        kept = is_clearly_lower(after, before)
        report = {"before": mean_divergence(before), "after": mean_divergence(after), "kept": kept}
        return (fitted if kept else small), report

    def _report(
        self,
        small: PreTrainedModel,
        found: Found,
        fitted: dict[str, Any],
        refitted: dict[str, Any] | None,
        metrics: dict[str, dict[str, float]],
    ) -> dict[str, Any]:
        pipeline = self.pipeline
        dense, choices = pipeline.dense_metrics, pipeline.choices
        sizes = choices.sizes(fitted["levels"])
        predicted = choices.table.predict(sizes)
        own, best = pipeline.main_metric(metrics), pipeline.main_metric(dense)
        return {
            "target": {"name": self.target.name, "kind": self.target.kind, "value": self.target.value},
            "measured": fitted["measured"],
            "predicted": {"seconds": predicted, "speedup": choices.dense_seconds / predicted},
            "metric": {"name": pipeline.task.metric, "dense": best, "compressed": own},
            "metrics": {"dense": dense, "compressed": metrics},
            "divergence": (pipeline.before or pipeline).divergence(small),
            "sizes": sizes,
            "dense_sizes": {kind: pipeline.adapter.dense_groups(pipeline.model, kind) for kind in sizes},  # type: ignore[arg-type]
            "parameters": _parameters(pipeline, small),
            "dense_parameters": _parameters(pipeline, pipeline.dense),
            "search": found.to_dict(),
            "fit": fitted["rounds"],
            "refit": refitted,
            "environment": choices.table.environment.to_dict(),
            "versions": {
                "ziplm": version("ziplm"),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "python": platform.python_version(),
            },
            "seed": (pipeline.before or pipeline).config.seed,
            "command": shlex.join(["ziplm", *sys.argv[1:]]),
            "seconds": self.run.seconds,
        }


def _parameters(pipeline: Pipeline, model: PreTrainedModel) -> dict[str, int]:
    """How many parameters a model has, and how many of them are in its layers."""
    layers = sum(p.numel() for layer in pipeline.adapter.layers(model) for p in layer.parameters())
    return {"all": sum(p.numel() for p in model.parameters()), "layers": layers}

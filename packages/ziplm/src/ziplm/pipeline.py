"""The stages on a run folder: a result is computed when it is needed, saved, and loaded the next time."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors
import torch
from latency_profiler import LatencyTable
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from ziplm.adapters import Module
from ziplm.calibrate import gather_inputs, loss_metric
from ziplm.errors import BadRun, UsageError
from ziplm.files import read_json, write_json, written_whole
from ziplm.heads import Divergence, mean_divergence
from ziplm.levels import module_costs, module_levels
from ziplm.loading import Loaded
from ziplm.loss_metric import LossMetric
from ziplm.prune import Priors, exact_priors, prune_module
from ziplm.search import Choices, prior_names_for
from ziplm.stitch import Evaluator, Stitcher
from ziplm.tasks import Features
from ziplm.traces import StoredTraces

FEWEST = 8  # samples that each part of the calibration data must have, unless fewer are asked for


class Pipeline(Loaded):
    """What all targets of a run share."""

    def check(self) -> None:
        """Fail before the long work if data and options do not go with each other and the task."""
        if not self.splits.evaluation:
            raise UsageError("there is nothing to evaluate on", "give --validation-file")
        if self.config.prior == "exact" and not self.task.head.pooled:
            raise UsageError(
                f"prior exact is not for task {self.config.task}", "it is for mean embeddings: use auto"
            )
        if self.config.loss == "task" and not self.task.head.has_loss:
            raise UsageError(f"task {self.config.task} has no loss of its own", "use --loss kl")
        self.parts  # noqa: B018

    @cached_property
    def metric(self) -> LossMetric | None:
        """Stage 1, first half: what the loss feels."""
        if not self.config.gradients:
            return None
        if self.workers.missing(self.run.metric_file):
            with self.run.timed("calibrate"), self.reporter.stage("calibrate: gradients") as advance:
                found = loss_metric(
                    self.model,
                    self.task,
                    self.parts[0],
                    batch_size=self.config.calibration_batch_size,
                    seed=self.config.seed,
                    progress=advance,
                    workers=self.workers,
                )
                self.workers.first(lambda: found.save(self.run.metric_file))
        return LossMetric.load(self.run.metric_file)

    def token_weights(self, module: Module) -> tuple[torch.Tensor | None, int]:
        """Weights of the tokens of the first part for one module, and how many they amount to."""
        if self.metric is None:
            return None, sum(len(sample["input_ids"]) for sample in self.parts[0])
        return self.metric.token_weights(module.name, _columns(module))

    @cached_property
    def traces(self) -> StoredTraces:
        """Stage 2: a trace for every module."""
        modules = self.modules
        there = self.workers.first(lambda: [self._is_pruned(module) for module in modules])
        missing = [module for module, done in zip(modules, there, strict=True) if not done]
        for chunk in _chunks(missing, int(self.config.memory_gb * 2**30)):
            self._prune_chunk(chunk)
        self.workers.wait()  # for all files to be there
        return StoredTraces({module.name: self.run.trace_file(module.name) for module in modules})

    def _is_pruned(self, module: Module) -> bool:
        return self.run.trace_file(module.name).exists() and self.run.priors_file(module.name).exists()

    def _prune_chunk(self, modules: Sequence[Module]) -> None:
        """Gather the inputs of some modules in one pass, prune them, and forget the inputs."""
        tokens = {module.name: self.token_weights(module) for module in modules}
        with self.run.timed("calibrate"), self.reporter.stage("calibrate: inputs") as advance:
            inputs = gather_inputs(
                self.model,
                self.task,
                self.parts[0],
                modules,
                {name: weights for name, (weights, _) in tokens.items()},
                batch_size=self.config.calibration_batch_size,
                progress=advance,
                workers=self.workers,
            )
        own = self.workers.share(sorted(modules, key=_columns, reverse=True))  # of the large ones, too
        inputs = {module.name: inputs[module.name] for module in own}
        with self.run.timed("prune"), self.reporter.stage("prune") as advance:
            for number, module in enumerate(own):
                trace, priors = prune_module(
                    self.model,
                    module,
                    inputs.pop(module.name),
                    self.metric,
                    tokens[module.name][1],
                    centred=self.config.centred,
                    method=self.config.selection,
                    update=self.config.update,
                )
                _write_tensors(self.run.priors_file(module.name), priors)
                self.run.trace_file(module.name).parent.mkdir(parents=True, exist_ok=True)
                trace.save(self.run.trace_file(module.name))
                advance(number + 1, len(own))

    @property
    def prior_names(self) -> list[str]:
        """The priors that targets are solved with."""
        return [self.config.prior] if self.config.prior != "auto" else prior_names_for(self.priors)

    @cached_property
    def priors(self) -> dict[str, Priors]:
        """What each level of each module is expected to harm, by name of the module and of the prior."""
        traces = self.traces
        priors: dict[str, Priors] = {
            module.name: _read_tensors(self.run.priors_file(module.name)) for module in self.modules
        }
        if self.config.gradients and self.task.head.pooled:
            for name, exact in self._exact_priors(traces).items():
                priors[name]["exact"] = exact
        return priors

    def _exact_priors(self, traces: StoredTraces) -> dict[str, torch.Tensor]:
        file = self.run.priors_file("exact")
        if self.workers.missing(file):
            with self.run.timed("prune"), self.reporter.stage("prune: exact prior") as advance:
                found = exact_priors(
                    self.model,
                    self.task,
                    [*self.parts[1], *self.parts[2]],
                    self.modules,
                    traces,
                    batch_size=self.config.calibration_batch_size,
                    seed=self.config.seed,
                    progress=advance,
                    workers=self.workers,
                )
                self.workers.first(lambda: _write_tensors(file, found))
        return _read_tensors(file)

    @cached_property
    def reachable(self) -> Choices:
        """Levels and what they cost, without what they harm: enough to see which targets can be met."""
        return self._choices({}, self.table)

    def _choices(self, priors: dict[str, Priors], table: LatencyTable) -> Choices:
        levels = module_levels(self.adapter, self.model, self.config.round_to)
        costs = module_costs(self.adapter, self.model, levels, self.config.setting)
        dense = self.adapter.modules(self.dense)
        return Choices(levels, priors, table, costs, self.config.uniform, dense)

    def quick_choices(self, seconds: float) -> Choices:
        """The same from the run's own table, a given one, or a coarse one that is not kept."""
        if self.run.latency_file.exists():
            return self.reachable
        if self.config.latency_table is not None:
            table = self._checked(LatencyTable.load(self.config.latency_table))
        else:
            table = self._measured_table("measuring roughly", self.model, seconds)
        return self._choices({}, table)

    @cached_property
    def choices(self) -> Choices:
        """What the search may choose from."""
        return self._choices(self.priors, self.table)

    @cached_property
    def stitcher(self) -> Stitcher:
        """Makes candidates."""
        return Stitcher(self.model, self.traces)

    def evaluator(self, part: int) -> Evaluator:
        """The loss of candidates on one of the three parts of the samples."""
        return Evaluator(
            self.stitcher,
            self.task,
            self.parts[part],
            loss=self.config.loss,
            batch_size=self.config.calibration_batch_size,
            workers=self.workers,
        )

    @cached_property
    def search_loss(self) -> Evaluator:
        """The loss that the search sees."""
        return self.evaluator(1)

    @cached_property
    def judge_loss(self) -> Evaluator:
        """The loss on samples that no decision of the search was made on."""
        return self.evaluator(2)

    def forget_candidates(self) -> None:
        """Free what only a search needs: modules of all sizes, remembered states; the next makes its own."""
        for name in ("stitcher", "search_loss", "judge_loss"):
            self.__dict__.pop(name, None)

    def divergence(self, model: PreTrainedModel) -> float:
        """How far a model is from the dense one, on the third part of the samples."""
        return mean_divergence(self.divergences(model, self.parts[2]))

    def divergences(self, model: PreTrainedModel, features: Sequence[Features]) -> list[Divergence]:
        """The same on any samples, a few of them at a time."""
        head, parts = self.task.head, []
        with torch.inference_mode():
            for _, batch in self.workers.share(self.task.batches(features, FEWEST, self.model.device)):
                reference = head.outputs(self.model, batch)
                parts.append(head.divergence(model, head.outputs(model, batch), reference, batch))
        return self.workers.joined(parts)

    def evaluate(self, model: PreTrainedModel, description: str) -> dict[str, dict[str, float]]:
        """Metrics on every evaluation split, found by the first process."""
        dense, splits = self.dense, self.splits.evaluation

        def metrics_on(name: str, features: Sequence[Features]) -> dict[str, float]:
            self.task.prepare_reference(dense, features)
            with self.run.timed("evaluate"), self.reporter.stage(f"{description}: {name}") as advance:
                return self.task.evaluate(
                    model, features, self.config.calibration_batch_size, progress=advance
                )

        return self.workers.first(lambda: {name: metrics_on(name, own) for name, own in splits.items()})

    @cached_property
    def dense_metrics(self) -> dict[str, dict[str, float]]:
        """Metrics of the dense model."""
        if self.before is not None:
            return self.before.dense_metrics
        if self.workers.missing(self.run.dense_file):
            found = self.evaluate(self.model, "evaluate dense")
            self.workers.first(lambda: write_json(self.run.dense_file, found))
        metrics: dict[str, dict[str, float]] = read_json(self.run.dense_file)
        return metrics

    def as_good_as(self, metric: float, wanted: float) -> bool:
        """Whether a figure of the main metric is good enough."""
        return metric >= wanted if self.task.greater_is_better else metric <= wanted

    def main_metric(self, metrics: dict[str, dict[str, Any]]) -> float:
        """The one figure that stands for all."""
        return float(next(iter(metrics.values()))[self.task.metric])


def _write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    with written_whole(path) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except safetensors.SafetensorError as error:
        raise BadRun(f"{path} is damaged", "delete it and run the command again") from error


def _columns(module: Module) -> int:
    return module.groups * module.group_size


def _chunks(modules: Sequence[Module], limit: int) -> list[list[Module]]:
    """Modules whose moments, and the copies that pruning one of them takes, fit into memory together."""
    sizes = [8 * _columns(module) ** 2 for module in modules]
    copies = 4 * max(sizes, default=0)
    chunks: list[list[Module]] = []
    room = 0
    for module, needed in zip(modules, sizes, strict=True):
        if not chunks or needed > room:
            chunks.append([])
            room = limit - copies
        chunks[-1].append(module)
        room -= needed
    return chunks

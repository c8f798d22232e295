"""The stages on a run folder: a result is computed when it is needed, saved, and loaded the next time."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors
import torch
from latency_profiler import LatencyTable
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.adapters import Adapter, Module, adapter_for
from ziplm.calibrate import LossMetric, gather_inputs, loss_metric
from ziplm.config import Config
from ziplm.errors import BadRun, UsageError
from ziplm.files import read_json, write_json, written_whole
from ziplm.fit import for_measuring
from ziplm.heads import Divergence, mean_divergence
from ziplm.levels import module_costs, module_levels
from ziplm.profile import latency_table
from ziplm.progress import Reporter
from ziplm.prune import Priors, exact_priors, prune_module
from ziplm.run import Run
from ziplm.search import Choices, prior_names_for
from ziplm.stitch import Evaluator, Stitcher
from ziplm.tasks import Features, Splits, Task, make_task
from ziplm.traces import StoredTraces

FEWEST = 8  # samples that each part of the calibration data must have, unless fewer are asked for


class Pipeline:
    """What all targets of a run share.

    Args:
        config: what was asked.
        run: where results are kept.
        reporter: told of the stages.
        before: the pipeline of the dense model, where one that was compressed before is pruned further; its
            data, latency table and metrics hold for both.
        model: the model to prune; None for the one of the config.
    """

    def __init__(
        self,
        config: Config,
        run: Run,
        reporter: Reporter,
        before: "Pipeline | None" = None,
        model: PreTrainedModel | None = None,
    ) -> None:
        self.config, self.run, self.reporter, self.before = config, run, reporter, before
        self.workers = run.workers
        if model is not None:
            self.model = model

    @property
    def dense(self) -> PreTrainedModel:
        """What speedups refer to."""
        return self.model if self.before is None else self.before.dense

    @cached_property
    def task(self) -> Task:
        """What the model is for; it has learnt from the dense model and the data how to read both."""
        if self.before is not None:
            return self.before.task
        return make_task(self.config.task, **self.config.task_settings)

    @cached_property
    def model(self) -> PreTrainedModel:
        """The dense model, in float32 on its device."""
        options: dict[str, Any] = {"dtype": torch.float32}
        if self.config.attention:
            options["attn_implementation"] = self.config.attention
        self.config.setting.environment(self.config.attention)  # fails before anything is loaded
        if self.config.trains_dense:
            model = self.task.load_pretrained(self.config.model, self.config.seed, **options)
        else:
            model = self.task.load_model(self.config.model, **options)
        adapter_for(model)
        model.to(self.config.device)  # type: ignore[arg-type]  # a decorator hides self
        return model.eval()

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""
        return self.task.load_tokenizer(self.config.model)

    @cached_property
    def adapter(self) -> Adapter:
        """That of the model."""
        return adapter_for(self.model)

    @cached_property
    def modules(self) -> list[Module]:
        """Modules that are left to prune."""
        return [module for module in self.adapter.modules(self.model) if module.groups]

    @cached_property
    def splits(self) -> Splits:
        """Tokenised data."""
        if self.before is not None:
            return self.before.splits
        limit = self.model.config.max_position_embeddings
        length = min(self.config.max_length or self.config.sequence_length, limit)
        with self.reporter.stage("reading data"):
            return self.task.load_splits(self.model, self.tokenizer, self.config.source, length)

    @cached_property
    def parts(self) -> tuple[list[Features], list[Features], list[Features]]:
        """Samples behind the Hessians, for the search, and to judge by: no sample is in two of them."""
        train = self.splits.train
        asked = self.config.calibration_samples or self.task.calibration_samples, self.config.search_samples
        wanted, other = asked
        if wanted + 2 * other > len(train):  # too few for all: the Hessians get most
            other = min(other, len(train) // 5)
            wanted = min(wanted, len(train) - 2 * other)
        if wanted < min(FEWEST, asked[0]) or other < min(FEWEST, asked[1]):
            raise UsageError(
                f"there are {len(train)} training examples", f"give at least {5 * FEWEST} to calibrate on"
            )
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(self.config.seed)).tolist()
        chosen = [train[index] for index in order[: wanted + 2 * other]]
        return chosen[:wanted], chosen[wanted : wanted + other], chosen[wanted + other :]

    @cached_property
    def table(self) -> LatencyTable:
        """Stage 3: the latency table, given or measured."""
        if self.before is not None:
            return self.before.table
        file = self.run.latency_file
        model = self.model
        if self.workers.missing(file):
            self.workers.first(lambda: self._checked(self._new_table(model)).save(file))
        return self._checked(LatencyTable.load(file))

    def _checked(self, table: LatencyTable) -> LatencyTable:
        """A table, if it is of this model."""
        for module in self.modules:
            largest = max(table.curves[module.kind].sizes) if module.kind in table.curves else 0
            if self.adapter.dense_groups(self.model, module.kind) != largest:
                raise UsageError(
                    f"the latency table is of a model with {largest} groups of {module.kind}, not "
                    f"{self.adapter.dense_groups(self.model, module.kind)}",
                    "give one of this model, or none to measure here",
                )
        return table

    def _new_table(self, model: PreTrainedModel) -> LatencyTable:
        if self.config.latency_table is not None:
            return LatencyTable.load(self.config.latency_table)
        with self.run.timed("profile"):
            return self._measured_table("profile", model, self.config.profile_seconds)

    def _measured_table(self, description: str, model: PreTrainedModel, seconds: float) -> LatencyTable:
        with self.reporter.stage(description) as advance:
            return latency_table(
                for_measuring(model, self.config.setting),
                self.config.setting,
                round_to=self.config.round_to,
                max_seconds=seconds,
                progress=lambda rounds, used: advance(used, 1.0),
            )

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
        return Choices(levels, priors, table, costs, self.config.uniform)

    def quick_choices(self, seconds: float) -> Choices:
        """The same from the run's own table, a given one, or a coarse one that is not kept."""
        if self.run.latency_file.exists():
            return self.reachable
        if self.config.latency_table is not None:
            table = LatencyTable.load(self.config.latency_table)
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

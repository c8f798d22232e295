"""What a run starts from: the dense model, its task and data, and the latency table."""

from functools import cached_property
from typing import Any, Self

import torch
from latency_profiler import LatencyTable
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.adapters import Adapter, Module, adapter_for
from ziplm.config import Config
from ziplm.errors import UsageError
from ziplm.fit import for_measuring
from ziplm.profile import latency_table
from ziplm.progress import Reporter
from ziplm.run import Run
from ziplm.tasks import Features, Splits, Task, make_task

FEWEST = 8  # samples that each part of the calibration data must have, unless fewer are asked for


class Loaded:
    """What is read or measured once, when it is needed.

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
        before: Self | None = None,
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

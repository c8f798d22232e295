"""The values that the steps of a pipeline pass to each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.architectures.base import Architecture, Branch
from ziplm.architectures.registry import architecture_of
from ziplm.options.options import Options
from ziplm.options.setting import Setting
from ziplm.options.targets import Target
from ziplm.stages.choices import Choices
from ziplm.stages.dense_outputs import DenseOutputs
from ziplm.stages.fisher import Fisher
from ziplm.stages.intervals import Interval
from ziplm.stages.levels import head_widths
from ziplm.stages.traces import InOrder, StoredTraces
from ziplm.tasks.base import Features, Splits, Task


@dataclass(frozen=True)
class Samples:
    """Training examples in three disjoint parts.

    Attributes:
        calibration: samples for the fisher, the Hessians and the refit.
        search: samples on which the search compares candidates.
        judging: samples that decide whether the results of the search and of the refit are kept.
    """

    calibration: list[Features]
    search: list[Features]
    judging: list[Features]

    @property
    def not_calibrated(self) -> list[Features]:
        """Samples that calibration did not use: the search samples and the judging samples."""
        return [*self.search, *self.judging]


@dataclass(frozen=True)
class Start:
    """The starting point of a run.

    Attributes:
        options: the options of the run.
        task: the task, set up for the dense model and the data.
        dense: the dense model, in float32 on its device; speedups refer to it.
        tokenizer: the model's tokenizer.
        splits: tokenised data.
        samples: training examples drawn for the dense model, in three parts.
        setting: where and on which inputs models are measured, adapted to the data and the machine.
    """

    options: Options
    task: Task
    dense: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    splits: Splits
    samples: Samples
    setting: Setting

    @property
    def architecture(self) -> Architecture:
        """The architecture of the dense model and of all models made from it."""
        return architecture_of(self.dense)

    @cached_property
    def dense_outputs(self) -> DenseOutputs:
        """The dense model's outputs, with which all models are compared."""
        return DenseOutputs(self.dense, self.task)

    @property
    def refits(self) -> bool:
        """Whether models are refitted.

        A refit fits the hidden states of all tokens. Where the model reads a single one, it has made members
        worse whenever it was tried (bench/oneshot.py sst2 and mrpc), and that took a tenth of a run to find.
        """
        asked = self.options.refit
        return asked if asked is not None else not self.task.head.reads_one_token

    def remaining_branches(self, model: PreTrainedModel) -> list[Branch]:
        """Return the branches of a model that can still be pruned."""
        return [branch for branch in self.architecture.branches(model) if branch.groups]

    def head_widths(self, model: PreTrainedModel) -> dict[str, list[int]]:
        """Return the widths that heads may get, the current one first, of attentions that may be narrower."""
        if not self.options.head_width:
            return {}
        widths = {
            branch.name: head_widths(branch.group_size, self.options.round_to)
            for branch in self.remaining_branches(model)
            if self.architecture.spec(model, branch).width_path is not None
        }
        return {name: known for name, known in widths.items() if len(known) > 1}

    def main_metric(self, metrics: Mapping[str, Mapping[str, Any]]) -> float:
        """Return the task's main metric on the first evaluation split."""
        return float(next(iter(metrics.values()))[self.task.metric])

    def main_interval(self, intervals: Mapping[str, Mapping[str, Interval]]) -> Interval | None:
        """Return the interval of the task's main metric on the first evaluation split, if it has one."""
        return next(iter(intervals.values())).get(self.task.metric)


@dataclass(frozen=True)
class Pruned:
    """The current model with the traces of its branches, from which `shrink` makes models of any size.

    Attributes:
        current: the current model: the dense one in one-shot runs, the previous member in gradual ones.
        samples: training examples drawn for the current model, in three parts.
        seed: seed of the samples, the fisher, the search and the training.
        fisher: the fisher; None without gradients.
        traces: a trace for each branch.
        choices: levels of all branches, with costs and priors.
        dense_choices: choices of the dense model, without priors; the sparsity of a target refers to it.
        prior_names: the priors that the search tries.
    """

    current: PreTrainedModel
    samples: Samples
    seed: int
    fisher: Fisher | None
    traces: StoredTraces
    choices: Choices
    dense_choices: Choices
    prior_names: list[str]

    def traces_in_order(self) -> InOrder:
        """Return the traces in the order of the branches, as `shrink` takes them."""
        return InOrder(self.traces, [levels.branch.name for levels in self.choices.levels])

    def budgets(self, target: Target) -> dict[str, float]:
        """Return the budgets of a target that is not of kind "recover", by name of the cost."""
        return self.choices.budgets(target, self.dense_choices)


class Refitted(NamedTuple):
    """How a refit changed the mean divergence from the dense model, and whether its result is kept."""

    before: float
    after: float
    kept: bool


def token_weights(fisher: Fisher | None, branch: Branch, samples: Samples) -> tuple[torch.Tensor | None, int]:
    """Return the weights of the calibration tokens for a branch, and their effective number."""
    if fisher is None:
        return None, sum(len(sample["input_ids"]) for sample in samples.calibration)
    return fisher.token_weights(branch.name, branch.columns)

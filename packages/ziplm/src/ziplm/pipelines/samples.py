"""Which training examples serve which purpose: calibration, search and judging, and fine-tuning."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from ziplm.architectures.registry import architecture_of
from ziplm.errors import UsageError
from ziplm.options.options import Options
from ziplm.pipelines.values import Samples, Start
from ziplm.tasks.base import Features, Task
from ziplm.tasks.encoding import Chosen

FEWEST = 8  # smallest number of samples in each part of `Samples`, unless fewer are asked for
# More samples than these hardly change what is pruned: this many tokens for each input of the widest output
# matrix, so that its Hessian is known well enough, and this many texts, since classifiers look at one token
# of each.
TOKENS_PER_COLUMN, ENOUGH_SAMPLES = 16, 1024


def kept_apart(start: Start) -> tuple[Sequence[Features], list[Features]]:
    """Return the training examples without the dense model's judging samples, and these samples."""
    train, samples = start.splits.train, start.samples
    first = len(samples.calibration) + len(samples.search)
    order = _random_order(train, start.options.seed)
    rest = [*order[:first], *order[first + len(samples.judging) :]]
    return Chosen(train, sorted(rest)), samples.judging


def _random_order(train: Sequence[Features], seed: int) -> list[int]:
    order: list[int] = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def draw_samples(
    train: Sequence[Features], options: Options, task: Task, dense: PreTrainedModel, seed: int
) -> Samples:
    """Draw the samples for calibration, search and judging; no example is in two parts."""
    order = _random_order(train, seed)
    enough = options.calibration_samples or _enough_samples(train, order, task, dense)
    asked = enough, options.search_samples
    wanted, other = asked
    if wanted + 2 * other > len(train):  # too few for all parts: calibration gets most
        other = min(other, len(train) // 5)
        wanted = min(wanted, len(train) - 2 * other)
    if wanted < min(FEWEST, asked[0]) or other < min(FEWEST, asked[1]):
        raise UsageError(
            f"there are {len(train)} training examples", f"give at least {5 * FEWEST} to calibrate on"
        )
    chosen = [train[index] for index in order[: wanted + 2 * other]]
    return Samples(chosen[:wanted], chosen[wanted : wanted + other], chosen[wanted + other :])


def _enough_samples(
    train: Sequence[Features], order: Sequence[int], task: Task, dense: PreTrainedModel
) -> int:
    """Return how many samples to calibrate on: at most the task's number, and fewer if they are long."""
    architecture = architecture_of(dense)
    widest = max(architecture.weight(dense, branch).shape[1] for branch in architecture.branches(dense))
    tokens = 0
    for count, index in enumerate(order[: task.calibration_samples]):
        if count >= ENOUGH_SAMPLES and tokens >= TOKENS_PER_COLUMN * widest:
            return count
        tokens += len(train[index]["input_ids"])
    return task.calibration_samples

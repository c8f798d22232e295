"""Which training examples serve which purpose: calibration, search and judging, and fine-tuning.

Calibration, search and judging prefer long examples. Short ones are quickly right, and say little about
attention: with those of SST-2, which are phrases for the most part, models diverged more on whole sentences.
"""

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
POOL = 4  # examples that are looked at for each one that is drawn


def kept_apart(start: Start) -> tuple[Sequence[Features], list[Features]]:
    """Return the training examples without the dense model's judging samples, and these samples."""
    train, samples = start.splits.train, start.samples
    first = len(samples.calibration) + len(samples.search)
    order = _drawn_order(train, start.options, start.task, start.options.seed)
    rest = [*order[:first], *order[first + len(samples.judging) :]]
    return Chosen(train, sorted(rest)), samples.judging


def usual_lengths(train: Sequence[Features], count: int, seed: int) -> list[int]:
    """Return the numbers of tokens of so many examples, or fewer, of which each is as likely as any other."""
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:count]
    return [len(train[index]["input_ids"]) for index in chosen.tolist()]


def _drawn_order(train: Sequence[Features], options: Options, task: Task, seed: int) -> list[int]:
    """Return a random order of the examples, in whose beginning long ones are more frequent than short ones.

    The probability of an example to come next is proportional to its number of tokens, among `POOL` times as
    many examples as are needed at most.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(train), generator=generator)
    needed = (options.calibration_samples or task.calibration_samples) + 2 * options.search_samples
    pool, rest = order[: POOL * needed], order[POOL * needed :]
    tokens = torch.tensor([len(train[index]["input_ids"]) for index in pool.tolist()], dtype=torch.float64)
    # The first of independent exponential times is that of an example with probability rate / sum of rates.
    times = -torch.rand(len(pool), generator=generator, dtype=torch.float64).log() / tokens
    drawn: list[int] = torch.cat([pool[times.argsort()], rest]).tolist()
    return drawn


def draw_samples(
    train: Sequence[Features], options: Options, task: Task, dense: PreTrainedModel, seed: int
) -> Samples:
    """Draw the samples for calibration, search and judging; no example is in two parts."""
    order = _drawn_order(train, options, task, seed)
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
    widest = max(branch.columns for branch in architecture_of(dense).branches(dense))
    tokens = 0
    for count, index in enumerate(order[: task.calibration_samples]):
        if count >= ENOUGH_SAMPLES and tokens >= TOKENS_PER_COLUMN * widest:
            return count
        tokens += len(train[index]["input_ids"])
    return task.calibration_samples

"""The units of work that stages consist of: what a probe measures, and estimates count.

Work on samples is counted in tokens with their padding, which takes as long as any other token: among few
samples, those in a batch differ more in length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ziplm.tasks.base import Features


@dataclass(frozen=True)
class UnitTimes:
    """Seconds of the units of work that stages consist of; CPU time, or wall time on other devices than CPUs.

    Attributes:
        forward: a forward pass of the dense model, for each token.
        divergence: comparing the outputs of two models, for each token.
        fisher: a forward and backward pass that finds the fisher, for each token.
        statistics: a forward pass that gathers the statistics of all branches, for each token.
        pruning: pruning a branch, for each row and square of its number of columns.
        training: a forward and backward pass of the dense model for training, for each token.
        optimizer: a step of the optimizer, for each parameter.
        evaluation: a forward pass of the dense model with its head, for each token.
        export: exporting the dense model for the engine, quantised if that is asked for; 0 in torch.
        served: like `evaluation`, for the exported model in its engine; 0 in torch.
        waiting: wall time divided by CPU time; 1 on a quiet machine with one thread.
        clock: the clock of these times.
    """

    forward: float
    divergence: float
    fisher: float
    statistics: float
    pruning: float
    training: float
    optimizer: float
    evaluation: float
    export: float
    served: float
    waiting: float
    clock: str


def padded_tokens(samples: Sequence[Features], batch_size: int) -> int:
    """Count the tokens of samples and their padding, in batches as `Task.batches` makes them."""
    return padded([len(sample["input_ids"]) for sample in samples], batch_size)


def padded(lengths: Sequence[int], batch_size: int) -> int:
    """Count the tokens of samples of these lengths as `padded_tokens` does."""
    ordered = sorted(lengths)
    batches = [ordered[first : first + batch_size] for first in range(0, len(ordered), batch_size)]
    return sum(len(batch) * batch[-1] for batch in batches)

"""A made-up model with three layers whose loss is known, and choices for it."""

from collections.abc import Callable, Sequence

import torch
from ziplm.architectures.base import Branch, Size
from ziplm.stages.choices import Choices, Levels, Priors
from ziplm.stages.levels import BranchLevels, size_grid
from ziplm.tasks.heads import Divergence
from ziplm_models import HEADS, HIDDEN, WIDTH
from ziplm_pipeline import linear_table

BRANCHES = [
    Branch(layer, kind, groups, width)
    for layer in range(3)
    for kind, groups, width in (("attention", HEADS, HIDDEN // HEADS), ("ffn", WIDTH, 1))
]
HARM = torch.tensor([0.3, 5.0, 1.0, 0.1, 2.0, 0.7])
"""Loss of the made-up model when all of one branch is removed."""
RIGHT, WRONG = HARM.tolist(), HARM.flip(0).tolist()


def all_levels(branch: Branch) -> BranchLevels:
    """Return the levels of a branch on the grid of its kind."""
    return BranchLevels(
        branch, tuple(Size(groups, branch.group_size) for groups in size_grid(branch.kind, branch.groups))
    )


def true_loss(sizes: Sequence[Size]) -> float:
    """Return the loss of a made-up model: harm grows with the square of the share that is removed."""
    shares = torch.tensor(
        [1 - size.groups / branch.groups for size, branch in zip(sizes, BRANCHES, strict=True)]
    )
    return float((HARM * shares.square()).sum())


def parts_of(loss: Callable[[Sequence[Size]], float]) -> Callable[[Sequence[Size]], list[Divergence]]:
    """Return a function for the losses of two batches that are equally hard."""
    return lambda sizes: 2 * [Divergence(loss(sizes), 1)]


true_parts = parts_of(true_loss)


class CountedLoss:
    """The true loss; one of its calls raises an error."""

    def __init__(self, last: int, error: type[BaseException]) -> None:
        self.calls, self.last, self.error = 0, last, error

    def __call__(self, sizes: Sequence[Size]) -> float:
        self.calls += 1
        if self.calls == self.last:
            raise self.error
        return true_loss(sizes)


def choices_with(**harms: Sequence[float]) -> Choices:
    """Return choices with priors by name, each given as the estimated harm of removing each branch."""
    priors: dict[str, Priors] = {
        branch.name: {
            name: torch.tensor([harm[place] * (k / branch.groups) ** 2 for k in range(branch.groups + 1)])
            for name, harm in harms.items()
        }
        for place, branch in enumerate(BRANCHES)
    }
    return Choices([all_levels(branch) for branch in BRANCHES], priors, linear_table())


def predicted(choices: Choices, levels: Levels) -> float:
    """Return the seconds of a model according to the table."""
    return choices.table.predict(choices.sizes(levels))

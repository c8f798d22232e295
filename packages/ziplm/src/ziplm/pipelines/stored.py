"""What is read back from the state of a run must be something that the stages can have computed.

A run may be resumed weeks later, from files that a full disk, a copy or an editor has changed. Each function
takes a value that was read from a file, and raises ValueError, TypeError or KeyError if it cannot be what was
written; `Run.stored` then names the file.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ziplm.architectures.base import Branch
from ziplm.files import is_number
from ziplm.options.targets import Target
from ziplm.pipelines.recover import SLOWEST, STEPS, Guess, is_good
from ziplm.pipelines.values import Pruned, Samples
from ziplm.stages.choices import SECONDS, Choices, Priors
from ziplm.stages.fisher import Fisher
from ziplm.stages.fit import Fitted
from ziplm.stages.measure import Measured
from ziplm.stages.search import Found
from ziplm.tasks.base import Predictions

ORDERS = "orders"
"""Name of `AttentionTrace.orders` among the priors of an attention."""
ROUNDING = 1 + 1e-9  # sums of costs depend on their order


def found_in(document: Any, pruned: Pruned, aim: Target) -> Found:
    """Return the result of a search: levels within all budgets of its target."""
    found = Found.from_dict(document)
    _require_levels(found.levels, pruned.choices)
    _require_budgets(found.levels, pruned.choices, pruned.budgets(aim))
    _require(found.prior in pruned.prior_names and set(found.prior_losses) == set(pruned.prior_names))
    losses = [*found.prior_losses.values(), found.start_loss]
    _require(all(map(is_number, losses)) and type(found.evaluations) is int and found.evaluations >= 0)
    _require(found.searched_loss is None or is_number(found.searched_loss))
    return found


def fitted_in(document: Any, pruned: Pruned, aim: Target, found: Found, measured: bool) -> Fitted:
    """Return the result of a fit: the levels that were found, unless they were measured and corrected."""
    fitted = Fitted.from_dict(document)
    _require_levels(fitted.levels, pruned.choices)
    budgets = {name: budget for name, budget in pruned.budgets(aim).items() if name != SECONDS}
    _require_budgets(fitted.levels, pruned.choices, budgets)  # the time is measured, not added up
    _require(measured or (fitted.levels == found.levels and fitted.rounds == []))
    for each in fitted.rounds:
        _require(set(each) == {"predicted_seconds", "speedup"} and all(map(_is_positive, each.values())))
    return fitted


def measured_in(document: Any) -> Measured:
    """Return the measurement of a finished model."""
    measured = Measured(**document)
    _require(all(map(_is_positive, (measured.speedup, measured.seconds, measured.dense_seconds))))
    _require(is_number(measured.low) and is_number(measured.high))
    _require(measured.low <= measured.speedup <= measured.high)
    _require(is_number(measured.competition) and 0 <= measured.competition <= 1)
    _require(is_number(measured.doubt) and measured.doubt >= 0)
    return measured


def guess_in(document: Any, greater_is_better: bool) -> Guess:
    """Return the result of a bisection, which follows from its steps."""
    guess = Guess(**document)
    _require(len(guess.steps) == STEPS and is_number(guess.wanted))
    _require(all(is_number(step["speedup"]) and is_number(step["metric"]) for step in guess.steps))
    kept = [
        step["speedup"] for step in guess.steps if is_good(step["metric"], guess.wanted, greater_is_better)
    ]
    _require(guess.speedup == max(SLOWEST, *kept) if kept else guess.speedup == SLOWEST)
    return guess


def predictions_in(tensors: Mapping[str, torch.Tensor], splits: Sequence[str]) -> dict[str, Predictions]:
    """Return predictions by split, from tensors named ``split/name``."""
    predictions: dict[str, Predictions] = {split: {} for split in splits}
    for key, values in tensors.items():
        split, _, name = key.rpartition("/")
        _require(bool(values.isfinite().all()))
        predictions[split][name] = values.numpy()
    _require(all(predictions.values()))
    return predictions


def require_alike(first: Mapping[str, Predictions], second: Mapping[str, Predictions]) -> None:
    """Raise ValueError unless two models' predictions are of the same examples."""
    for split, predictions in first.items():
        _require(set(predictions) == set(second[split]))
        _require(all(predictions[name].shape == second[split][name].shape for name in predictions))


def require_equal(expected: Any, document: Any) -> None:
    """Raise ValueError unless a document is what it must be."""
    _require(document == expected)


def priors_in(
    tensors: Mapping[str, torch.Tensor], branch: Branch, gradients: bool, widths: int = 0
) -> Priors:
    """Return the priors of a branch: the harm of removing 0, 1, … of its groups, at each width of heads."""
    priors = {name: values for name, values in tensors.items() if name != ORDERS or not widths}
    _require(set(priors) == {"own", "stream", *(("factored", "scalar") if gradients else ())})
    for values in priors.values():
        _require_prior(values, branch, widths)
    return priors


def orders_in(tensors: Mapping[str, torch.Tensor], branch: Branch, widths: int) -> torch.Tensor:
    """Return the heads in the order in which they are removed at each width, stored beside the priors."""
    orders = tensors[ORDERS]
    _require(orders.shape == (widths, branch.groups) and orders.dtype == torch.int64)
    _require(all(sorted(order) == list(range(branch.groups)) for order in orders.tolist()))
    return orders


def exact_priors_in(
    tensors: Mapping[str, torch.Tensor], branches: Sequence[Branch], widths: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """Return the exact prior of every branch."""
    _require(set(tensors) == {branch.name for branch in branches})
    for branch in branches:
        _require_prior(tensors[branch.name], branch, widths.get(branch.name, 0))
    return dict(tensors)


def score_harms_in(
    tensors: Mapping[str, torch.Tensor], branches: Sequence[Branch], widths: Mapping[str, Sequence[int]]
) -> dict[str, torch.Tensor]:
    """Return the harm of each head's scores at each width, of the attentions that may become narrower."""
    _require(set(tensors) == {branch.name for branch in branches})
    for branch in branches:
        harms = tensors[branch.name]
        _require(harms.shape == (len(widths[branch.name]), branch.groups) and harms.dtype == torch.float64)
        _require(bool((harms.isfinite() & (harms >= 0)).all()))
    return dict(tensors)


def fisher_in(
    fisher: Fisher,
    branches: Sequence[Branch],
    hidden: int,
    samples: Samples,
    narrowed: Sequence[Branch] = (),
) -> Fisher:
    """Return a fisher that knows every branch and every token of the calibration samples.

    Of attentions that may become narrower, it knows the queries and keys.
    """
    tokens = sum(len(sample["input_ids"]) for sample in samples.calibration)
    for branch in branches:
        squares = fisher.squares[branch.name]
        _require(squares.shape == (tokens,) and bool(squares.isfinite().all()))
        _require(fisher.shape_of(branch.name) == (hidden, hidden))
    for branch in narrowed:
        heads, width = branch.size
        for name, values in fisher.scores[branch.name]._asdict().items():
            wanted = (heads, width) if name == "key_mean" else (heads, width, width)
            _require(values.shape == wanted and values.dtype == torch.float64)
    return fisher


def _require_prior(values: torch.Tensor, branch: Branch, widths: int) -> None:
    shape = (widths, branch.groups + 1) if widths else (branch.groups + 1,)
    _require(values.shape == shape and values.dtype == torch.float64)
    _require(bool(values.isfinite().all()))


def _require_levels(levels: Sequence[Any], choices: Choices) -> None:
    for level, branch_levels in zip(levels, choices.levels, strict=True):
        _require(type(level) is int and 0 <= level < len(branch_levels.sizes))


def _require_budgets(levels: Sequence[int], choices: Choices, budgets: Mapping[str, float]) -> None:
    for name, budget in budgets.items():
        fixed = choices.table.fixed if name == SECONDS else 0.0
        _require(fixed + choices.total(name, levels) <= budget * ROUNDING)


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError("not what was computed")

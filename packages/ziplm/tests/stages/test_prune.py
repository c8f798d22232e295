"""The order of removal depends on fisher, token weights and method; Hessians in memory are limited."""

import pytest
import torch
from ziplm.architectures.registry import architecture_of
from ziplm.stages.calibrate import gather_statistics
from ziplm.stages.fisher import Fisher
from ziplm.stages.prune import in_chunks, prune_branch
from ziplm.stages.statistics import BranchStatistics
from ziplm_calibrated import TASK, Calibrated
from ziplm_models import HIDDEN, tiny_model
from ziplm_pipeline import (
    ARCHITECTURES,
    CLASSIFIER,
)


@pytest.fixture(params=ARCHITECTURES, scope="module")
def calibrated(request: pytest.FixtureRequest) -> Calibrated:
    return Calibrated(request.param)


def test_another_fisher_gives_another_order_and_other_priors(calibrated: Calibrated) -> None:
    branch = calibrated.branches[1]
    first, own_priors = calibrated.pruned(branch)
    narrow = torch.zeros(HIDDEN, HIDDEN, dtype=torch.float64)
    narrow[2, 2] = 1  # only one output matters
    other = Fisher({branch.name: narrow}, calibrated.fisher.squares)
    second, narrow_priors = calibrated.pruned(branch, fisher=other)
    plain, without_fisher = calibrated.pruned(branch, fisher=None)
    assert set(without_fisher) == {"stream", "own"}
    orders = [trace.order.tolist() for trace in (first, second, plain)]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert not torch.allclose(own_priors["factored"], narrow_priors["factored"])
    half = branch.groups // 2
    # Each has the smaller error under the metric that it was chosen by.
    assert second.errors_under(narrow)[half] < first.errors_under(narrow)[half]
    own = calibrated.fisher.selection_matrix(branch.name)
    assert first.errors_under(own)[half] < second.errors_under(own)[half]


def test_token_weights_change_the_order(calibrated: Calibrated) -> None:
    branch = calibrated.branches[1]
    even = gather_statistics(calibrated.model, TASK, calibrated.features, [branch], {})[branch.name]
    weighted = calibrated.inputs[branch.name]
    assert isinstance(even, BranchStatistics)
    orders = [
        prune_branch(calibrated.model, branch, inputs, None, 100).order.tolist()
        for inputs in (even, weighted)
    ]
    assert orders[0] != orders[1]


def test_method_update_and_damping_are_passed_on(calibrated: Calibrated) -> None:
    branch = calibrated.branches[1]
    kept, _ = calibrated.pruned(branch, fisher=None, method="magnitude", update=False, damping=0.5)
    weight = calibrated.architecture.weight(calibrated.model, branch).detach()
    assert kept.order.tolist() == weight.double().square().sum(0).argsort().tolist()
    assert torch.equal(kept.weight(3), weight[:, kept.columns(3)])
    assert kept.damping == 0.5
    few, many = (calibrated.pruned(branch, effective_tokens=n)[0].damping for n in (10, 10**6))
    assert few >= many


def test_branches_are_divided_into_chunks_that_fit() -> None:
    model = tiny_model(CLASSIFIER)
    branches = architecture_of(model).branches(model)
    assert in_chunks(branches, 2**30) == [branches]
    assert in_chunks(branches, 1) == [[branch] for branch in branches]
    assert in_chunks([], 1) == []
    # The Hessian of an attention takes 2 KiB and that of an FFN 4.5, of which four copies are made.
    some = in_chunks(branches, 18 * 1024 + 7 * 1024)
    assert some == [branches[:2], branches[2:4], branches[4:]]

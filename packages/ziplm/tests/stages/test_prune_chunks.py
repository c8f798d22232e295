"""Branches are pruned in chunks whose Hessians fit in memory."""

from ziplm.architectures.registry import architecture_of
from ziplm.stages.prune import in_chunks
from ziplm_models import tiny_model
from ziplm_pipeline import CLASSIFIER


def test_branches_are_divided_into_chunks_that_fit() -> None:
    model = tiny_model(CLASSIFIER)
    branches = architecture_of(model).branches(model)
    assert in_chunks(branches, 2**30) == [branches]
    assert in_chunks(branches, 1) == [[branch] for branch in branches]
    assert in_chunks([], 1) == []
    # The Hessian of an attention takes 2 KiB and that of an FFN 4.5, of which four copies are made.
    some = in_chunks(branches, 18 * 1024 + 7 * 1024)
    assert some == [branches[:2], branches[2:4], branches[4:]]

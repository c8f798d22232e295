"""A candidate that falls behind is given up early with an estimate; one that may win is evaluated in full."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ziplm.architectures.base import Size
from ziplm.architectures.registry import architecture_of
from ziplm.stages.race import BATCHES, estimated_loss, falls_behind, looks_at, spread_order
from ziplm.stages.stitch import CandidateLoss, Stitcher
from ziplm.tasks.heads import Divergence
from ziplm_models import removed_by, sizes_left
from ziplm_pipeline import ARCHITECTURES, lively_model, named_traces, samples, task_for

MODELS = {name: lively_model(name) for name in ARCHITECTURES}
TRACES = {name: named_traces(model) for name, model in MODELS.items()}


class CountedLoss(CandidateLoss):
    """A loss that counts the batches it computes."""

    batches = 0

    def _loss_of_batch(self, number: int) -> Divergence:
        self.batches += 1
        return super()._loss_of_batch(number)


def loss_on_batches(name: str) -> CountedLoss:
    features, task = samples(name, 2 * BATCHES), task_for(name)
    return CountedLoss(Stitcher(MODELS[name], TRACES[name]), task, features, batch_size=2)


def sizes(name: str, pattern: str) -> list[Size]:
    return sizes_left(MODELS[name], removed_by(MODELS[name], pattern))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_candidate_that_is_far_behind_is_given_up(name: str) -> None:
    loss = loss_on_batches(name)
    good, bad = sizes(name, "some columns"), sizes(name, "everything")
    full = loss(bad)
    rival = loss(good)
    loss.batches = 0
    estimate = loss.race((bad, good))
    assert loss.batches <= BATCHES / 4
    assert estimate > rival
    assert estimate == pytest.approx(full, rel=0.5)  # from a part of the samples
    assert estimate != full


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_candidate_that_is_ahead_is_evaluated_in_full(name: str) -> None:
    loss = loss_on_batches(name)
    good, bad = sizes(name, "some columns"), sizes(name, "everything")
    rival = loss(bad)
    loss.batches = 0
    found = loss.race((good, bad))
    assert loss.batches == BATCHES
    assert found == pytest.approx(loss_on_batches(name)(good), rel=1e-6)
    assert found < rival


def test_the_rival_is_evaluated_if_it_is_not_known_as_after_an_interruption() -> None:
    name = ARCHITECTURES[0]
    good, bad = sizes(name, "some columns"), sizes(name, "everything")
    without = loss_on_batches(name)
    without(good)
    expected = without.race((bad, good))
    resumed = loss_on_batches(name)
    assert resumed.race((bad, good)) == pytest.approx(expected, rel=1e-6)
    assert BATCHES < resumed.batches < 2 * BATCHES
    other = loss_on_batches(name)
    other(sizes(name, "nothing"))  # better than the rival that is named
    assert other.race((bad, good)) == pytest.approx(expected, rel=1e-6)


def test_hidden_states_of_a_candidate_that_was_given_up_are_not_used_again() -> None:
    name = ARCHITECTURES[0]
    good, bad = sizes(name, "some columns"), sizes(name, "everything")
    loss = loss_on_batches(name)
    loss(good)
    loss.race((bad, good))
    last = len(architecture_of(MODELS[name]).branches(MODELS[name])) - 1
    changed = list(good)
    changed[last] = changed[last]._replace(groups=changed[last].groups - 1)
    assert loss(changed) == pytest.approx(loss_on_batches(name)(changed), rel=1e-5)


@given(st.integers(1, 300))
def test_batches_are_compared_at_few_points_and_all_of_them_at_the_end(count: int) -> None:
    looks = looks_at(count)
    assert looks[-1] == count
    assert all(first < last for first, last in itertools.pairwise(looks))
    assert all(look >= min(4, count) for look in looks)
    assert sorted(spread_order(count)) == list(range(count))


@given(st.integers(16, 300), st.integers(2, 8))
def test_the_first_batches_are_spread_over_all_lengths(count: int, share: int) -> None:
    first = sorted(spread_order(count)[: count // share])
    gaps = [last - before for before, last in itertools.pairwise([-1, *first, count])]
    assert max(gaps) <= 3 * share + 1


def divergences(totals: Sequence[float]) -> list[Divergence]:
    return [Divergence(total, 8) for total in totals]


def test_what_may_be_chance_is_not_behind() -> None:
    rival = divergences([1.0, 2.0, 3.0, 4.0])
    assert falls_behind(divergences([1.5, 2.5, 3.6, 4.6]), rival)
    assert not falls_behind(divergences([3.0, 2.0, 3.0, 3.0]), rival)  # higher by chance, in one batch
    assert not falls_behind(rival, rival)
    assert not falls_behind(divergences([0.5, 1.5, 2.4, 3.4]), rival)


def test_the_estimate_adds_the_difference_so_far_to_the_rivals_loss() -> None:
    rival, behind = divergences([8.0, 16.0]), divergences([16.0, 32.0])
    assert estimated_loss(behind, rival, 2.0) == pytest.approx(2.0 + 24 / 16)

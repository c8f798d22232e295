"""Batches: every example once, by length, with at most so many examples and tokens."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from ziplm.tasks import make_task

LENGTHS = st.lists(st.integers(1, 40), max_size=30)


def examples(lengths: list[int]) -> list[dict[str, list[int]]]:
    return [{"input_ids": [7] * length, "attention_mask": [1] * length} for length in lengths]


@given(lengths=LENGTHS, batch_size=st.integers(1, 8), most_tokens=st.none() | st.integers(1, 100))
def test_batches_hold_every_example_once_within_the_limits(
    lengths: list[int], batch_size: int, most_tokens: int | None
) -> None:
    task = make_task("classification")
    made = list(task.batches(examples(lengths), batch_size, most_tokens=most_tokens))
    order = [index for chosen, _ in made for index in chosen]
    assert order == sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    for chosen, batch in made:
        assert batch["input_ids"].shape == (len(chosen), max(lengths[index] for index in chosen))
        assert batch["attention_mask"].sum(1).tolist() == [lengths[index] for index in chosen]
        assert 1 <= len(chosen) <= batch_size
        assert len(chosen) == 1 or most_tokens is None or batch["input_ids"].numel() <= most_tokens


@given(lengths=LENGTHS, batch_size=st.integers(1, 8), most_tokens=st.integers(1, 100))
def test_batches_are_as_large_as_the_limits_allow(
    lengths: list[int], batch_size: int, most_tokens: int
) -> None:
    task = make_task("classification")
    made = [chosen for chosen, _ in task.batches(examples(lengths), batch_size, most_tokens=most_tokens)]
    for chosen, following in pairwise(made):
        with_one_more = (len(chosen) + 1) * lengths[following[0]]
        assert len(chosen) == batch_size or with_one_more > most_tokens

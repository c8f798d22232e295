"""A training counts the examples that it has seen."""

import itertools

import pytest
from ziplm.options.training import TrainingOptions
from ziplm.stages.finetune import _examples_seen


@pytest.mark.parametrize(
    ("steps", "examples", "batch", "accumulation", "processes"),
    list(itertools.product((1, 3, 4, 7, 20), (10, 32, 100), (8, 32), (1, 3), (1, 2))),
)
def test_examples_are_counted_batch_by_batch(
    steps: int, examples: int, batch: int, accumulation: int, processes: int
) -> None:
    options = TrainingOptions(batch_size=batch, gradient_accumulation=accumulation)
    seen = taken = 0
    while taken < steps:  # epoch by epoch, as Trainer deals batches out
        left = examples
        while left > 0 and taken < steps:
            step = min(left, batch * processes * accumulation)
            seen, left, taken = seen + step, left - step, taken + 1
    assert _examples_seen(steps, examples, options, processes) == seen

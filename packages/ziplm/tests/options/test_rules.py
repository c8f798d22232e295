"""Ranges of options: for every rule, a value that is allowed and one that is not."""

from typing import Any

import pytest
from ziplm import Options, UsageError
from ziplm.options.rules import COUNTS, LOSS_WEIGHTS, RULES

# An allowed and a refused value for each option, as close to the limit as possible.
VALUES: dict[str, tuple[Any, Any]] = {
    "speedup": ((2.0, 1.01), (2.0, 1.0)),
    "latency_ms": ((0.1,), (0.0,)),
    "recover": ((1.0,), (1.01,)),
    "sparsity": ((0.99,), (1.0,)),
    "params": ((1.0,), (0.0,)),
    "flops": ((1.0,), (0.0,)),
    "bytes": ((1.0,), (0.0,)),
    "seed": (2**30 - 1, 2**30),
    "evaluations": (0, -1),
    "dtype": ("bfloat16", "float8"),
    **dict.fromkeys(COUNTS, (1, 0)),
    "steps_per_target": (-1, 0),
    "dense_steps": (0, -2),
    "memory_gb": (0.01, 0.0),
    "measure_seconds": (0.01, 0.0),
    "profile_seconds": (0.01, 0.0),
    **dict.fromkeys(LOSS_WEIGHTS, (0.0, -0.1)),
    "prior": ("own", "best"),
    "selection": ("magnitude", "random"),
    "search": ("uniform", "random"),
}


def options_with(**values: Any) -> Options:
    return Options("m", "sst2", "o", **values)


def test_every_rule_is_tested() -> None:
    assert {name for rule in RULES for name in rule.options} == set(VALUES)


@pytest.mark.parametrize("name", VALUES)
def test_a_rule_allows_values_within_its_range_only(name: str) -> None:
    allowed, refused = VALUES[name]
    assert getattr(options_with(**{name: allowed}), name) == allowed
    with pytest.raises(UsageError) as caught:
        options_with(**{name: refused})
    rule = next(rule for rule in RULES if name in rule.options)
    wrong = refused[-1] if isinstance(refused, tuple) else refused
    assert str(caught.value) == f"{rule.message.format(name=name, value=wrong)}; {rule.hint}"


@pytest.mark.parametrize(
    ("name", "value"), [("recover", (0.0,)), ("sparsity", (0.0,)), ("seed", -1), ("dense_steps", -3)]
)
def test_ranges_are_limited_on_the_other_side_as_well(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}"):
        options_with(**{name: value})


@pytest.mark.parametrize("name", ["batch_size", "threads", "max_length", "calibration_samples"])
def test_options_that_are_not_given_pass(name: str) -> None:
    assert getattr(options_with(**{name: None}), name) is None


def test_a_gradual_run_needs_a_weight_in_its_loss() -> None:
    zero = dict.fromkeys(LOSS_WEIGHTS, 0.0)
    options_with(mode="oneshot", **zero)
    options_with(mode="gradual", **{**zero, "task_weight": 1.0})
    with pytest.raises(UsageError, match="all weights of the loss are 0"):
        options_with(mode="gradual", **zero)


@pytest.mark.parametrize("prior", ["factored", "scalar", "exact"])
def test_priors_from_gradients_need_gradients(prior: str) -> None:
    options_with(prior=prior)
    with pytest.raises(UsageError, match=f"prior {prior} needs gradients; leave out --no-gradients"):
        options_with(prior=prior, gradients=False)
    options_with(prior="stream", gradients=False)


def test_at_most_two_text_columns_are_allowed() -> None:
    options_with(text_column=("a", "b"))
    with pytest.raises(UsageError, match="3 text columns; give one or two"):
        options_with(text_column=("a", "b", "c"))

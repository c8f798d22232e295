"""Ranges of options: for every rule, a value that is allowed and one that is not."""

from typing import Any, get_args

import pytest
from ziplm import Options, UsageError
from ziplm.options import kinds
from ziplm.options.rules import COUNTS, LOSS_WEIGHTS, MOST_THREADS, RULES

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
    **dict.fromkeys(COUNTS, (1, 0)),
    "steps_per_target": (-1, 0),
    "dense_steps": (0, -2),
    "memory_gb": (0.01, 0.0),
    "measure_seconds": (0.01, 0.0),
    "profile_seconds": (0.01, 0.0),
    "train_minutes": (0.01, 0.0),
    "warmup": (0.0, 1.0),
    **dict.fromkeys((*LOSS_WEIGHTS, "dense_epochs"), (0.0, -0.1)),
    "epochs_per_step": (1e6, 1e6 + 1),
}
REGIME = {"prompt_length": "generate", "new_tokens": "generate"}  # of options that not every regime uses
CHOICES: dict[str, Any] = {
    "clock": kinds.Clock,
    "dtype": kinds.Dtype,
    "engine": kinds.Engine,
    "loss": kinds.Loss,
    "method": kinds.Method,
    "mode": kinds.Mode,
    "precision": kinds.Precision,
    "prior": kinds.Prior,
    "quantize": kinds.Quantize,
    "regime": kinds.Regime,
    "search": kinds.Search,
    "selection": kinds.Selection,
}


def options_with(**values: Any) -> Options:
    return Options(model="m", task="sst2", output="o", **values)


def test_every_rule_is_tested() -> None:
    assert {name for rule in RULES for name in rule.options} == set(VALUES)


@pytest.mark.parametrize("name", VALUES)
def test_a_rule_allows_values_within_its_range_only(name: str) -> None:
    allowed, refused = VALUES[name]
    regime = {"regime": REGIME.get(name, "throughput")}
    kept = getattr(options_with(**{name: allowed}, **regime), name)
    assert kept == (allowed if not isinstance(kept, tuple) or isinstance(allowed, tuple) else (allowed,))
    with pytest.raises(UsageError) as caught:
        options_with(**{name: refused}, **regime)
    rule = next(rule for rule in RULES if name in rule.options)
    wrong = refused[-1] if isinstance(refused, tuple) else refused
    assert str(caught.value) == f"{rule.message.format(name=name, value=wrong)}; {rule.hint}"


@pytest.mark.parametrize("name", CHOICES)
def test_an_option_with_a_choice_takes_each_of_its_values_and_no_other(name: str) -> None:
    values = get_args(CHOICES[name])
    assert Options.model_fields[name].annotation in (CHOICES[name], CHOICES[name] | None)
    engine = {"engine": "onnxruntime"} if name == "quantize" else {}
    for value in values:
        assert getattr(options_with(**{name: value}, **engine), name) == value
    with pytest.raises(UsageError) as caught:
        options_with(**{name: "best"})
    assert str(caught.value) == f"{name} is 'best'; use one of {', '.join(values)}"


def test_every_kind_of_choice_belongs_to_an_option() -> None:
    named = {name for name in vars(kinds) if name[0].isupper() and name != "Literal"}
    assert {getattr(kinds, name) for name in named} == set(CHOICES.values())
    assert len(named) == len(CHOICES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("recover", (0.0,)),
        ("sparsity", (0.0,)),
        ("seed", -1),
        ("dense_steps", -3),
        ("threads", MOST_THREADS + 1),
        ("batch_size", 100_000_000),
        ("memory_gb", 1e300),
        ("dense_epochs", 1e300),
    ],
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


def test_alternatives_are_refused_where_nothing_is_measured() -> None:
    options_with(alternatives=True)
    options_with(latency_table="latency.json")
    with pytest.raises(UsageError, match=r"alternatives are measured here, .*; leave out --alternatives, or"):
        options_with(alternatives=True, latency_table="latency.json")

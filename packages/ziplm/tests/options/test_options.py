"""Options are checked when they are made, and say which targets a run has."""

from typing import Any

import pytest
from pydantic import ValidationError
from ziplm import Options, UsageError

BASIC: dict[str, Any] = {"model": "m", "task": "sst2", "output": "o"}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("speedup", 1.0, "a speedup of 1; ask for more than 1"),
        ("speedup", "fast", "speedup is 'fast'; give a number"),
        ("speedup", float("inf"), "speedup is inf; give a number"),
        ("speedup", [2, None], "speedup is None; give a number"),
        ("latency_ms", -1, "a latency of -1 ms"),
        ("latency_ms", float("nan"), "latency_ms is nan; give a number"),
        ("recover", 1.5, "recover is 1.5; give a share"),
        ("dtype", "float8", "dtype is 'float8'; use one of float32, float16, bfloat16"),
        ("batch_size", 0, "batch_size is 0; use a whole number from 1 up"),
        ("batch_size", "8", "batch_size is '8'; give a whole number"),
        ("batch_size", 2.5, "batch_size is 2.5; give a whole number"),
        ("batch_size", True, "batch_size is True; give a whole number"),
        ("max_length", 0, "max_length is 0; use a whole number from 1 up"),
        ("calibration_batch_size", 0, "calibration_batch_size is 0"),
        ("gradients", 1, "gradients is 1; give true or false"),
        ("engine", "tensorrt", "engine is 'tensorrt'; use one of eager, compile"),
        ("method", "zip", "method is 'zip'; use one of default, ziplm"),
        ("clock", "sun", "clock is 'sun'; use one of auto, wall, cpu"),
        ("loss", "mse", "loss is 'mse'; use one of kl, task"),
        ("prior", "best", "prior is 'best'; use one of auto"),
        ("text_column", ["a", "b", "c"], "3 text columns; give one or two"),
        ("memory_gb", 0, "memory_gb is 0; use more than 0"),
        ("seed", -1, "seed is -1; use a whole number from 0"),
        ("seed", 2**30, "seed is 1073741824"),
        ("measure_seconds", -1, "measure_seconds is -1; use more than 0"),
        ("train_file", 3, "train_file is 3; give text"),
        ("model", 3, "model is 3; give text"),
    ],
)
def test_wrong_values_are_refused_in_one_line(option: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Options.of({**BASIC, "speedup": 2, option: value})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_prior_that_needs_gradients_is_refused_without_them() -> None:
    with pytest.raises(UsageError, match="prior factored needs gradients; leave out --no-gradients"):
        Options.of({**BASIC, "prior": "factored", "gradients": False})


def test_targets_are_sorted_and_made_once() -> None:
    options = Options.of({**BASIC, "speedup": [4, 2, 2.0], "latency_ms": [5, 9], "recover": 0.99})
    assert [target.name for target in options.targets()] == ["2x", "4x", "9ms", "5ms", "recover0.99"]
    sizes = Options.of({**BASIC, "sparsity": [0.75, 0.5]})
    assert [target.name for target in sizes.targets()] == ["sparsity0.5", "sparsity0.75"]
    sizes = Options.of({**BASIC, "params": [10, 20]})
    assert [target.name for target in sizes.targets()] == ["params20", "params10"]
    with pytest.raises(UsageError, match="there is no target"):
        Options.of(BASIC).targets()


def test_targets_that_would_share_a_folder_are_refused() -> None:
    with pytest.raises(UsageError, match=r"both are named 1\.23457x"):
        Options.of({**BASIC, "speedup": [1.2345678, 1.2345679]}).targets()


def test_options_are_given_by_name_and_do_not_change() -> None:
    with pytest.raises(TypeError, match="positional"):
        Options("m", "sst2", "o")  # type: ignore[call-arg]
    options = Options(**BASIC, seed=0)
    with pytest.raises(ValidationError, match="frozen"):
        options.seed = 1
    assert options.model_fields_set == {*BASIC, "seed"}
    assert options.model_copy(update={"seed": 1}).seed == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("speeedup", "there is no option 'speeedup'; did you mean speedup?"),
        ("xyz", "there is no option 'xyz'; see ziplm compress --help"),
    ],
)
def test_an_unknown_option_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Options(**BASIC, **{name: 2})
    assert str(caught.value) == message


@pytest.mark.parametrize("missing", BASIC)
def test_a_required_option_that_is_missing_is_named(missing: str) -> None:
    with pytest.raises(UsageError, match=f"^{missing} is missing; give it on the command line, in the"):
        Options.of({**BASIC, "speedup": 2, missing: None})

"""Options as TOML: what is written is read back, and bad files are refused."""

import os
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy import float32, int64
from ziplm import Options, UsageError
from ziplm.options.rules import UNUSED
from ziplm.options.toml import load_options, merged, read_options, save_options

BASIC: dict[str, Any] = {"model": "m", "task": "sst2", "output": "o"}


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, exclude_min=True)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))  # no path has a zero byte

options_values = st.fixed_dictionaries(
    {"model": TEXT.filter(bool), "task": TEXT.filter(bool), "output": TEXT.filter(bool)},
    optional={
        "speedup": st.lists(numbers(1, 1e9), max_size=3),
        "latency_ms": st.lists(numbers(0, 1e9), max_size=2),
        "recover": st.lists(numbers(0, 1), max_size=2),
        "train_file": TEXT | st.none(),
        "text_column": st.lists(TEXT, max_size=2),
        "label_column": TEXT,
        "max_length": st.integers(1, 10**6) | st.none(),
        "threads": st.none() | st.integers(1, 64),
        "clock": st.sampled_from(["auto", "wall", "cpu"]),
        "dtype": st.sampled_from(["float32", "float16", "bfloat16"]),
        "method": st.sampled_from(["default", "ziplm"]),
        "refit": st.booleans(),
        "memory_gb": numbers(0, 1e6),
        "seed": st.integers(0, 2**30 - 1),
    },
)


@given(options_values)
def test_options_survive_toml(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "config.toml"
    options = Options.of(values)
    save_options(options, path)
    assert load_options(path) == options
    assert options.differences(load_options(path)) == []


@pytest.mark.parametrize("regime", UNUSED)
def test_every_option_is_written_as_it_was_given(tmp_path: Path, regime: str) -> None:
    """Each option gets a value that is not its default, if the regime uses it and the engine runs it."""
    values: dict[str, Any] = {"regime": regime, "recover": (0.5,), "sparsity": (0.5,)}
    values |= {"task_option": ("stride=3",), "preset": None}
    for name, field in Options.model_fields.items():
        if name not in values and name not in UNUSED[regime]:
            values[name] = another_value(field.annotation, field.default)
    values |= {"engine": "onnxruntime", "quantize": "int8", "device": "cpu", "dtype": "float32"}
    values["warmup"] = 0.5
    values["alternatives"] = False  # excludes the latency table
    values["head_width"] = False  # needs gradients, the selection obs and updates, which are not given here
    options = Options(**values)
    save_options(options, tmp_path / "c.toml")
    assert load_options(tmp_path / "c.toml") == options
    assert set(read_options(tmp_path / "c.toml")) == set(values) - {"preset"}


def another_value(kind: Any, default: Any) -> Any:
    """Return a value of an option that is not its default."""
    if get_origin(kind) is tuple:
        return (3,) if get_args(get_args(kind)[0])[0] in (int, float) else ("a",)
    if get_origin(kind) is Literal:
        return next(value for value in reversed(get_args(kind)) if value != default)
    if kind in (bool, bool | None):
        return not default
    inner = kind if isinstance(kind, type) else get_args(get_args(kind)[0] or kind)[0]
    return 7 if inner in (int, float) else "x"


def test_names_may_be_written_as_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('model = "m"\ntask = "t"\noutput = "o"\nlatency-ms = 5\ntext-column = "sentence"\n')
    options = load_options(path)
    assert options.latency_ms == (5.0,)
    assert options.text_column == ("sentence",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speeedup = [2]", "has an unknown option 'speeedup'; see ziplm compress --help"),
        ("speedup = [2", "is not TOML: .*; correct it"),
        ("[table]\nspeedup = 2", "unknown option 'table'"),
        ("speedup = " + "[" * 100_000, "is not TOML: .*; correct it"),
        ("model = 'm'\ntask = 't'\noutput = 'o'\nspeedup = [2]\nseed = " + "9" * 400, "seed"),
        ("task = 't'", "model is missing; give it on the command line, in the call"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        load_options(path)
    assert "\n" not in str(caught.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not TOML"):
        load_options(path)
    os.mkfifo(tmp_path / "pipe.toml")  # reading it would wait for ever
    with pytest.raises(UsageError, match=r"pipe.toml is not a file"):
        load_options(tmp_path / "pipe.toml")
    with pytest.raises(UsageError, match=r"cannot read .*nothing.toml: No such file"):
        load_options(tmp_path / "nothing.toml")


def test_paths_and_numbers_of_numpy_are_accepted(tmp_path: Path) -> None:
    options = Options(
        model=tmp_path / "m",
        task="sst2",
        output=str(tmp_path),
        train_file=Path("a"),
        batch_size=int64(4),
        speedup=float32(2),
    )
    assert (options.model, options.train_file) == (str(tmp_path / "m"), "a")
    assert (type(options.batch_size), type(options.speedup[0])) == (int, float)
    save_options(options, tmp_path / "c.toml")
    assert load_options(tmp_path / "c.toml") == options


def test_another_method_or_preset_overrides_the_file_of_a_run(tmp_path: Path) -> None:
    save_options(Options(**BASIC), tmp_path / "config.toml")
    file = load_options(tmp_path / "config.toml")
    values = {name: getattr(file, name) for name in ("model", "task", "output", "prior", "search", "refit")}
    again = Options.of(merged({**values, "method": "default"}, {"method": "ziplm"}))
    assert (again.prior, again.search, again.refit) == ("own", "ziplm", False)
    kept = Options.of(merged({**values, "method": "default", "refit": False}, {"seed": 3}))
    assert (kept.prior, kept.search, kept.refit, kept.seed) == ("auto", "direct", False, 3)
    presets = Options.of(
        merged({**values, "learning_rate": 1.0, "mode": "gradual"}, {"preset": "bert-base-glue"})
    )
    assert presets.learning_rate != 1.0

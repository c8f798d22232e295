"""Options as TOML: what is written is read back, and bad files are refused."""

import dataclasses
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy import float32, int64
from ziplm import Options, UsageError
from ziplm.options.toml import load_options, merged, read_options, save_options

BASIC = {"model": "m", "task": "sst2", "output": "o"}


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, exclude_min=True)


options_values = st.fixed_dictionaries(
    {"model": st.text(min_size=1), "task": st.text(min_size=1), "output": st.text(min_size=1)},
    optional={
        "speedup": st.lists(numbers(1, 1e9), max_size=3),
        "latency_ms": st.lists(numbers(0, 1e9), max_size=2),
        "recover": st.lists(numbers(0, 1), max_size=2),
        "train_file": st.text() | st.none(),
        "text_column": st.lists(st.text(), max_size=2),
        "label_column": st.text(),
        "max_length": st.integers(1, 10**6) | st.none(),
        "threads": st.none() | st.integers(1, 64),
        "clock": st.sampled_from(["wall", "cpu"]),
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


def test_every_option_is_written_as_it_was_given(tmp_path: Path) -> None:
    """Each option gets a value that is not its default."""
    values: dict[str, Any] = {
        "dtype": "float16",
        "search": "uniform",
        "selection": "magnitude",
        "prior": "own",
    }
    values |= {"preset": None, "recover": (0.5,), "sparsity": (0.5,), "task_option": ("stride=3",)}
    for field in dataclasses.fields(Options):
        kind = field.type
        if field.name in values:
            continue
        if get_origin(kind) is tuple:
            values[field.name] = ("a",) if get_args(kind)[0] is str else (3,)
        elif kind is bool:
            values[field.name] = not field.default
        elif kind in (int, float) or int in get_args(kind):
            values[field.name] = 7
        else:
            choices = [each for each in get_args(kind) if isinstance(each, str)]
            values[field.name] = choices[-1] if choices else "x"
    options = Options(**values)
    save_options(options, tmp_path / "c.toml")
    assert load_options(tmp_path / "c.toml") == options
    assert set(read_options(tmp_path / "c.toml")) == set(values) - {"preset"}


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
        ("task = 't'", "model is missing; give it on the command line or in the config file"),
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
    with pytest.raises(UsageError, match=r"cannot read .*nothing.toml: No such file"):
        load_options(tmp_path / "nothing.toml")


def test_paths_and_numbers_of_numpy_are_accepted(tmp_path: Path) -> None:
    options = Options(
        tmp_path / "m",  # type: ignore[arg-type]
        "sst2",
        str(tmp_path),
        train_file=Path("a"),  # type: ignore[arg-type]
        batch_size=int64(4),  # type: ignore[arg-type]
        speedup=float32(2),  # type: ignore[arg-type]
    )
    assert (options.model, options.train_file) == (str(tmp_path / "m"), "a")
    save_options(options, tmp_path / "c.toml")
    assert load_options(tmp_path / "c.toml") == options


def test_another_method_or_preset_overrides_the_file_of_a_run(tmp_path: Path) -> None:
    save_options(Options("m", "sst2", "o"), tmp_path / "config.toml")
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

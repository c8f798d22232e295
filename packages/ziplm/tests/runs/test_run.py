"""Options as TOML and back, and the run folder: one process, one set of options, nothing half-written."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy import float32, int64
from ziplm import BadRun, Options, UsageError
from ziplm.architectures.registry import architecture_of
from ziplm.options.toml import read_options
from ziplm.files import read_json, write_json, written_whole
from ziplm.stages.prune import in_chunks
from ziplm.runs.folder import Run
from ziplm.runs.opening import open_run
from ziplm.targets import targets_of
from ziplm_models import tiny_model
from ziplm_pipeline import CLASSIFIER

BASIC = {"model": "m", "task": "sst2", "output": "o"}


def config_in(folder: Path, **options: Any) -> Options:
    return Options(**{**BASIC, "output": str(folder), "speedup": (2.0,), **options})  # type: ignore[arg-type]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, exclude_min=True)


configs = st.fixed_dictionaries(
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


@given(configs)
def test_toml_and_back(tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "config.toml"
    config = Options.of(options)
    config.save(path)
    assert Options.load(path) == config
    assert config.differences(Options.load(path)) == []


def test_every_option_is_written_as_it_was_given(tmp_path: Path) -> None:
    """One value for each option that is not its default."""
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
    config = Options(**values)
    config.save(tmp_path / "c.toml")
    assert Options.load(tmp_path / "c.toml") == config
    assert set(read_options(tmp_path / "c.toml")) == set(values) - {"preset"}


def test_names_of_options_may_be_written_as_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('model = "m"\ntask = "t"\noutput = "o"\nlatency-ms = 5\ntext-column = "sentence"\n')
    config = Options.load(path)
    assert config.latency_ms == (5.0,)
    assert config.text_column == ("sentence",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speeedup = [2]", "has an unknown option 'speeedup'; see ziplm compress --help"),
        ("speedup = [2", "is not TOML: .*; correct it"),
        ("[table]\nspeedup = 2", "unknown option 'table'"),
        ("task = 't'", "model is missing; give it on the command line or in the config file"),
    ],
)
def test_bad_files_of_options(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        Options.load(path)
    assert "\n" not in str(caught.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not TOML"):
        Options.load(path)
    with pytest.raises(UsageError, match=r"cannot read .*nothing.toml: No such file"):
        Options.load(tmp_path / "nothing.toml")


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
        ("clock", "sun", "clock is 'sun'; use one of wall, cpu"),
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


def test_paths_and_numbers_of_numpy_are_taken(tmp_path: Path) -> None:
    config = config_in(
        tmp_path, model=tmp_path / "m", train_file=Path("a"), batch_size=int64(4), speedup=float32(2)
    )
    assert (config.model, config.train_file) == (str(tmp_path / "m"), "a")
    config.save(tmp_path / "c.toml")
    assert Options.load(tmp_path / "c.toml") == config


def test_targets_are_sorted_and_made_once() -> None:
    config = Options.of({**BASIC, "speedup": [4, 2, 2.0], "latency_ms": [5, 9], "recover": 0.99})
    assert [target.name for target in targets_of(config)] == ["2x", "4x", "9ms", "5ms", "recover0.99"]
    sizes = Options.of({**BASIC, "sparsity": [0.75, 0.5]})
    assert [target.name for target in targets_of(sizes)] == ["sparsity0.5", "sparsity0.75"]
    sizes = Options.of({**BASIC, "params": [10, 20]})
    assert [target.name for target in targets_of(sizes)] == ["params20", "params10"]
    with pytest.raises(UsageError, match="there is no target"):
        targets_of(Options.of(BASIC))


def test_targets_that_would_share_a_folder_are_refused() -> None:
    with pytest.raises(UsageError, match=r"both are 1\.23457x"):
        targets_of(Options.of({**BASIC, "speedup": [1.2345678, 1.2345679]}))


def test_a_run_keeps_its_options_and_takes_more_targets(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with open_run(config_in(folder, speedup=(2.0, 50.0))) as run:
        finish(run, "2x")
    with open_run(config_in(folder, speedup=(4.0,), latency_ms=(3.0,), memory_gb=0.5)):
        pass
    kept = Options.load(folder / "config.toml")
    assert kept.speedup == (2.0, 4.0)  # and not 50, which came to nothing and is no longer asked for
    assert kept.latency_ms == (3.0,)
    with (
        pytest.raises(
            BadRun, match="made with other options: search_samples is 4, was 256, seed is 1, was 0; repeat"
        ),
        open_run(config_in(folder, seed=1, search_samples=4)),
    ):
        pass
    assert Options.load(folder / "config.toml") == kept


def finish(run: Run, target: str) -> None:
    """What a run has when a target is done, as far as its folder is looked at."""
    run.latency_file.touch()
    run.result_folder(target).mkdir()
    (run.result_folder(target) / "metrics.json").touch()


def test_a_command_that_made_nothing_may_be_corrected(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(OSError, match="typo"), open_run(config_in(folder, train_file="typo.tsv")):
        raise OSError("no typo.tsv")
    with open_run(config_in(folder, train_file="train.tsv")) as run:
        run.latency_file.touch()
    assert Options.load(folder / "config.toml").train_file == "train.tsv"
    with pytest.raises(BadRun, match="other options"), open_run(config_in(folder, train_file="other.tsv")):
        pass


def test_targets_of_commands_with_other_limits_are_not_mixed(tmp_path: Path) -> None:
    """2x, and then a sparsity, are not 2x with that sparsity."""
    folder = tmp_path / "run"
    for options in ({"speedup": (2.0,)}, {"speedup": (), "sparsity": (0.5, 0.7)}):
        with open_run(config_in(folder, **options)):
            pass
        names = [target.name for target in targets_of(Options.load(folder / "config.toml"))]
        assert names == (["2x"] if options["speedup"] else ["sparsity0.5", "sparsity0.7"])
    for options in ({"speedup": (2.0,), "params": 9.0}, {"speedup": (3.0,), "params": 9.0}):
        with open_run(config_in(folder, **options)) as run:
            finish(run, f"{options['speedup'][0]:g}x-params9")
    assert Options.load(folder / "config.toml").speedup == (2.0, 3.0)


def test_folders_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadRun, match="is not a folder"), open_run(config_in(tmp_path / "file")):
        pass
    with pytest.raises(BadRun, match="holds something else"), open_run(config_in(tmp_path)):
        pass
    assert names_in(tmp_path) == ["file"]
    with pytest.raises(OSError, match="file"), open_run(config_in(tmp_path / "file" / "run")):
        pass


def test_a_run_killed_before_it_had_a_config_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.state.mkdir()
    (run.state / "lock").touch()
    (tmp_path / f".config.toml.{'0' * 32}.toml").write_text("half")
    with open_run(config_in(tmp_path)):
        assert names_in(tmp_path) == ["config.toml", "state"]


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    with open_run(config_in(tmp_path)) as run:
        pass
    kept = [tmp_path / ".gitignore", tmp_path / "2x" / "config.json", run.priors_file("layer0.ffn")]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / ".2x.a1b2_c3d").mkdir()
    (tmp_path / ".2x.a1b2_c3d" / "model.safetensors").touch()
    leftovers = [run.state / "targets" / "2x" / ".search.json.4711"]
    leftovers += [tmp_path / ".latency.json.a1b2_c3d.json"]
    leftovers += [run.state / "traces" / f".layer0.ffn.safetensors.{'a' * 32}"]
    for path in leftovers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with open_run(config_in(tmp_path)):
        assert not any(path.exists() for path in [*leftovers, tmp_path / ".2x.a1b2_c3d"])
        assert all(path.exists() for path in kept)


HOLD = """
import sys
import filelock
with filelock.FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_is_for_one_process_at_a_time(tmp_path: Path) -> None:
    with open_run(config_in(tmp_path)) as run:
        pass
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.state / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(BadRun, match=r"another process works in .*; wait for it"),
            open_run(config_in(tmp_path)),
        ):
            pass
        holder.kill()  # a lock does not outlive its process
        holder.wait()
        with open_run(config_in(tmp_path)):
            pass
    finally:
        holder.kill()
        holder.communicate()


def test_seconds_of_stages_add_up(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.seconds == {}
    for _ in range(2):
        with run.timed("search"):
            pass
    first = run.seconds["search"]
    with run.timed("prune"):
        pass
    assert list(run.seconds) == ["search", "prune"]
    assert run.seconds["search"] == first >= 0


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"a": 1}}'])
def test_damaged_documents_are_told_about(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "found.json"
    write_json(path, {"a": [1, 2.5, None, "é"]})
    assert read_json(path) == {"a": [1, 2.5, None, "é"]}
    path.write_bytes(damage)
    with pytest.raises(BadRun, match=r"found.json is damaged; delete it and run the command again"):
        read_json(path)


def test_a_damaged_config_is_told_about(tmp_path: Path) -> None:
    with open_run(config_in(tmp_path)) as run:
        run.latency_file.touch()
    run.config_file.write_text("model = ")
    with pytest.raises(UsageError, match=r"config.toml is not TOML"), open_run(config_in(tmp_path)):
        pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "found.json"
    write_json(path, {"a": 1})

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match=os.strerror(number)):
        write_json(path, {"a": 2})
    monkeypatch.undo()
    assert read_json(path) == {"a": 1}
    assert names_in(tmp_path) == ["found.json"]


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    def write(path: Path, then: Callable[[], None]) -> None:
        with written_whole(path) as temporary:
            temporary.write_text("half")
            then()

    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "deep" / "a.txt", fail)
    assert names_in(tmp_path / "deep") == []
    write(tmp_path / "deep" / "a.txt", lambda: None)
    assert names_in(tmp_path / "deep") == ["a.txt"]
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "nan.json", json.loads("NaN"))
    assert not (tmp_path / "nan.json").exists()


def test_modules_are_taken_in_chunks_that_fit() -> None:
    model = tiny_model(CLASSIFIER)
    modules = architecture_of(model).modules(model)
    assert _chunks(modules, 2**30) == [modules]
    assert _chunks(modules, 1) == [[module] for module in modules]
    assert _chunks([], 1) == []
    # Moments of an attention take 2 KiB and of a feed-forward part 4.5, of which four copies are made.
    some = _chunks(modules, 18 * 1024 + 7 * 1024)
    assert some == [modules[:2], modules[2:4], modules[4:]]

"""A model and data given in memory give what the same model and data give as folders and files."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from click.testing import CliRunner
from datasets import Dataset
from ziplm import BadRun, Family, UsageError
from ziplm.cli import main
from ziplm_compressed import Recorder, command_line, options_for, without_times, words
from ziplm_pipeline import CLASSIFIER, assert_same_parameters, lively_model, parameters_of
from ziplm_text import letter_tokenizer

ROWS = [{"text": text, "label": ord(text[0]) % 2} for text in words(80, 0)]  # those of `write_files`


def arguments(files: Path, output: Path, **more: Any) -> dict[str, Any]:
    """Return arguments of `compress` with the model and the data of `write_files` in memory."""
    in_memory = {
        "model": lively_model(CLASSIFIER),
        "tokenizer": letter_tokenizer(),
        "train_file": ROWS,
        "validation_file": Dataset.from_list(ROWS[:30]),
    }
    return options_for(files, "bert", output, speedup=[1.5, 3], **{**in_memory, **more})


@pytest.fixture(scope="module")
def made(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return ziplm.compress(**arguments(files, tmp_path_factory.mktemp("runs") / "memory"))


def test_inputs_in_memory_give_the_weights_and_metrics_of_folders_and_files(
    files: Path, made: Family, tmp_path: Path
) -> None:
    expected = ziplm.compress(**options_for(files, "bert", tmp_path / "run", speedup=[1.5, 3]))
    for member, other in zip(made, expected, strict=True):
        weights = [(each.folder / "model.safetensors").read_bytes() for each in (member, other)]
        assert weights[0] == weights[1]
        reports = [without_times(each.metrics) for each in (member, other)]
        assert reports[0].pop("model", None) != reports[1].pop("model", "")
        named = Path(options_for(files, "bert", tmp_path)["validation_file"]).name
        datasets = [report.pop("dataset") for report in reports]
        assert datasets == [None, {"name": named, "config": None}]  # data in memory has no name
        assert reports[0] == reports[1]


def test_a_second_call_with_the_same_inputs_recomputes_nothing(files: Path, made: Family) -> None:
    folder, recorder = made[0].folder.parent, Recorder()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix != ".log"}
    assert ziplm.compress(**arguments(files, folder), progress=recorder) == made
    assert recorder.stages == []
    data = [path for path in before if path.is_file() and path.name not in ("config.toml", "lock")]
    assert {path: path.stat().st_mtime_ns for path in data} == {path: before[path] for path in data}


def test_another_target_uses_the_traces_of_inputs_in_memory(files: Path, made: Family) -> None:
    recorder = Recorder()
    ziplm.compress(
        **{**arguments(files, made[0].folder.parent), "speedup": [2.5]},
        progress=recorder,
    )
    assert recorder.stages == ["reading data", "search", "refit", "evaluate 2.5x: validation"]


def other_weights() -> Any:
    model = lively_model(CLASSIFIER)
    with torch.no_grad():
        model.classifier.bias += 1e-6
    return model


def other_tokenizer() -> Any:
    tokenizer = letter_tokenizer()
    tokenizer.add_tokens(["zz"])
    return tokenizer


CHANGES = {
    "model": other_weights,
    "tokenizer": other_tokenizer,
    "train_file": lambda: [*ROWS[:-1], {"text": "a", "label": 0}],
    "validation_file": lambda: Dataset.from_list(ROWS[:29]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_inputs_that_changed_are_named(files: Path, made: Family, name: str) -> None:
    folder = made[0].folder.parent
    kept = {path: path.read_bytes() for path in (folder / "inputs").rglob("*") if path.is_file()}
    with pytest.raises(BadRun, match=f"{name} changed since the run in .* was started; give the same, or"):
        ziplm.compress(**arguments(files, folder, **{name: CHANGES[name]()}))
    assert kept == {path: path.read_bytes() for path in (folder / "inputs").rglob("*") if path.is_file()}


def test_all_inputs_that_changed_are_named_at_once(files: Path, made: Family) -> None:
    changed = {name: change() for name, change in CHANGES.items()}
    with pytest.raises(BadRun, match="train_file, validation_file, model, tokenizer changed"):
        ziplm.compress(**arguments(files, made[0].folder.parent, **changed))


def test_inputs_may_change_until_there_are_results(files: Path, made: Family, tmp_path: Path) -> None:
    """A call that fails because of its data is repeated with better data."""
    with pytest.raises(UsageError, match="there are 3 training examples"):
        ziplm.compress(**arguments(files, tmp_path / "run", train_file=ROWS[:3]))
    again = ziplm.compress(**arguments(files, tmp_path / "run"))
    assert [without_times(m.metrics) | {"model": ""} for m in again] == [
        without_times(m.metrics) | {"model": ""} for m in made
    ]


def test_a_loaded_model_and_its_tokenizer_come_together(files: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="without its tokenizer; give tokenizer="):
        ziplm.compress(**arguments(files, tmp_path / "run", tokenizer=None))
    with pytest.raises(UsageError, match="a tokenizer is given without a loaded model"):
        ziplm.compress(**arguments(files, tmp_path / "run", model=str(files / "bert")))
    assert not (tmp_path / "run").exists()


def test_an_example_that_cannot_be_stored_is_refused(files: Path, tmp_path: Path) -> None:
    rows = [*ROWS, {"text": b"bytes", "label": 0}]
    with pytest.raises(
        UsageError, match=r"an example of train_file cannot be stored: .*bytes.*; give mappings"
    ):
        ziplm.compress(**arguments(files, tmp_path / "run", train_file=rows))


def test_the_callers_model_and_data_are_not_changed(files: Path, tmp_path: Path) -> None:
    model, rows = lively_model(CLASSIFIER), deepcopy(ROWS)
    model.train()
    before = parameters_of(model)
    ziplm.compress(
        **{**arguments(files, tmp_path / "run", model=model, train_file=rows), "speedup": [2]},
    )
    assert type(model).__name__ == CLASSIFIER
    assert model.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert_same_parameters(model, before)
    assert rows == ROWS


def test_a_model_in_memory_and_data_in_files_go_together(files: Path, made: Family, tmp_path: Path) -> None:
    paths = {name: files / f"{name.removesuffix('_file')}.csv" for name in ("train_file",)}
    (member,) = ziplm.compress(**{**arguments(files, tmp_path / "run", **paths), "speedup": [3]})
    weights = [(each.folder / "model.safetensors").read_bytes() for each in (member, made[1])]
    assert weights[0] == weights[1]


def test_a_report_holds_the_python_call_with_long_values_shortened(made: Family) -> None:
    command = json.loads((made[0].folder / "metrics.json").read_text())["command"]
    assert command.startswith(f"ziplm.compress(model=<{CLASSIFIER}>, task='classification', ")
    assert "train_file=<list>, validation_file=<Dataset>" in command
    assert "speedup=[1.5, 3]" in command
    assert "input_length=16" in command
    assert "tokenizer=<" in command
    assert ROWS[0]["text"] not in command
    assert "\n" not in command


def test_a_report_holds_the_command_line(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_for(files, "bert", tmp_path / "my run", speedup=2)
    line = command_line(options)
    monkeypatch.setattr("sys.argv", ["/usr/bin/ziplm", *line])
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 0, result.output
    command = json.loads((tmp_path / "my run" / "2x" / "metrics.json").read_text())["command"]
    assert command.startswith(f"ziplm compress {files / 'bert'} --task classification --output '")
    assert command.endswith("--threads 1 --refit --speedup 2")

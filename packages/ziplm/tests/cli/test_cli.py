"""The command line: inspect, benchmark, help pages, and how errors reach the user."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ziplm import inspect, save, shrink
from ziplm.cli import COMMANDS, main
from ziplm_models import make_traces, removed_by, tiny_model


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env={"COLUMNS": "120"})


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    model = tiny_model("BertForSequenceClassification")
    save(model, folder / "dense")
    save(shrink(model, removed_by(model, "a whole layer"), make_traces(model)), folder / "small")
    return folder


def test_inspect_shows_the_sizes_of_each_layer(checkpoints: Path) -> None:
    result = run("inspect", checkpoints / "small")
    assert result.exit_code == 0, result.output
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in result.output.splitlines() if "│" in line
    ]
    assert [row[:3] for row in rows] == [
        ["0", "4/4", "22/24"],
        ["1", "removed", "removed"],
        ["2", "3/4", "24/24"],
        ["all", "7", "46"],
    ]
    assert "MB of weights on disk" in result.output


@pytest.mark.parametrize("name", ["BertModel", "GPT2LMHeadModel"])
def test_inspect_counts_the_parameters_of_layers(name: str) -> None:
    model = tiny_model(name)
    dense = inspect(model)
    assert dense.layer_parameters == [dense.dense_layer_parameters] * 3
    assert dense.parameters == sum(parameter.numel() for parameter in model.parameters())
    shrunk = inspect(shrink(model, removed_by(model, "everything"), make_traces(model)))
    biases_and_norms = 16 * (2 + (4 if name.startswith("Bert") else 0))
    assert shrunk.layer_parameters == [biases_and_norms] * 3


def test_benchmark_prints_speedups_and_the_environment(checkpoints: Path) -> None:
    result = run(
        "benchmark",
        checkpoints / "dense",
        checkpoints / "small",
        "--input-length",
        "16",
        "--max-seconds",
        "2",
    )
    assert result.exit_code == 0, result.output
    assert "1.00x" in result.output
    assert "batch 8, sequence 16" in result.output.replace("\n", " ")
    assert re.search(r"\d+ rounds, until the (speedups were known within|time limit of)", result.output)
    assert "rel_error" not in result.output


def test_benchmark_compares_a_checkpoint_with_itself(checkpoints: Path) -> None:
    result = run(
        "benchmark",
        checkpoints / "small",
        checkpoints / "small",
        "--input-length",
        "8",
        "--max-seconds",
        "1",
    )
    assert result.exit_code == 0, result.output
    assert "(1)" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["inspect", "./nowhere"], 4, "Error: ./nowhere is not a folder; give the folder"),
        (["inspct", "x"], 2, "no such command 'inspct'; did you mean 'inspect'?"),
        (["benchmark", "./a"], 2, "Missing argument"),
        (
            ["benchmark", "{dense}", "{small}", "--input-length", "65"],
            2,
            "the model takes 64: give",
        ),
        (["benchmark", "{dense}", "{small}", "--batch-size", "0"], 2, "batch_size is 0; use a whole number"),
        (
            ["benchmark", "{dense}", "{small}", "--input-length", "8", "--device", "cuda:9"],
            2,
            "no cuda device",
        ),
        (["benchmark", "{dense}", "{small}", "--device", "abacus"], 2, "'abacus' is not a device"),
    ],
)
def test_an_error_is_one_line_with_an_exit_code(
    arguments: list[str], code: int, message: str, checkpoints: Path
) -> None:
    paths = {"dense": checkpoints / "dense", "small": checkpoints / "small"}
    result = run(*(argument.format(**paths) for argument in arguments))
    assert result.exit_code == code, result.output
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError("No space left on device"), 1, "Error: No space left on device; check the path"),
        (KeyboardInterrupt(), 130, "Error: interrupted"),
        (KeyError("surprise"), 70, "Error: KeyError: 'surprise'; set ZIPLM_DEBUG=1"),
    ],
)
def test_an_unexpected_error_is_one_line_too(
    error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> None:
        raise error

    monkeypatch.setattr("ziplm.architectures.inspection.inspect", fail)
    result = run("inspect", "x")
    assert result.exit_code == code
    assert result.output.strip().splitlines()[-1].startswith(message)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"(Example: |Examples: *\n +)ziplm {command} ?", result.output)

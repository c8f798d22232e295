"""``--json`` prints one JSON document on stdout, with the values that the table shows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ziplm
from click.testing import CliRunner, Result
from ziplm.cli import main
from ziplm.cli.benchmark import _digits
from ziplm.results.sizes import sizes_text
from ziplm.results.table import metric_texts, speed_text
from ziplm.stages import measure
from ziplm_compressed import LENGTH, command_line, options_for, write_files


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], env={"COLUMNS": "250"})
    assert result.exit_code == 0, result.output
    return result


def both(*arguments: object) -> tuple[Any, str]:
    """Return what a command prints as JSON, and as a table."""
    return json.loads(invoke(*arguments, "--json").stdout), invoke(*arguments).stdout


def rows_of(table: str) -> list[list[str]]:
    """Return the cells of every row of a table, without its headings."""
    lines = [line for line in table.splitlines() if "│" in line]
    return [[cell.strip() for cell in line.strip("│ ").split("│")] for line in lines]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


def compress_command(files: Path) -> list[str]:
    return command_line(options_for(files, "bert", files / "run", speedup=[1.5, 2]))


@pytest.fixture(scope="module")
def made(files: Path) -> Result:
    """Make a run, and print it as JSON."""
    return invoke(*compress_command(files), "--json")


@pytest.fixture
def member(files: Path, made: Result) -> Path:
    return files / "run" / "2x"


def assert_shows_members(table: str, members: list[dict[str, Any]]) -> None:
    """Assert that the table of a family has the values of its members."""
    rows = rows_of(table)
    assert len(rows) == len(members) == 2
    for row, member in zip(rows, members, strict=True):
        metrics = member["metrics"]
        left, dense = metrics["parameters"]["layers"], metrics["dense_parameters"]["layers"]
        assert row == [
            member["target"],
            speed_text(metrics),
            *metric_texts(metrics["metric"]),
            f"{left / 1e6:.2f}M ({left / dense:.0%})",
            f"{metrics['bytes_on_disk'] / 1e6:.0f} MB",
        ]
        assert f"{member['target']}: {sizes_text(metrics['sizes'])}  {member['folder']}\n" in table


def test_compress_prints_the_family_and_keeps_progress_on_stderr(files: Path, made: Result) -> None:
    printed = json.loads(made.stdout)
    assert "evaluate 2x" in made.stderr
    family = ziplm.compress(**options_for(files, "bert", files / "run", speedup=[1.5, 2]))
    assert printed == json.loads(json.dumps(family.to_dict()))
    for member in printed["members"]:
        assert member["metrics"] == json.loads((Path(member["folder"]) / "metrics.json").read_text())


def test_compress_prints_the_same_values_as_its_table(files: Path, made: Result) -> None:
    printed, table = both(*compress_command(files))
    assert printed == json.loads(made.stdout)
    assert_shows_members(table, printed["members"])


def test_a_dry_run_has_no_json(files: Path) -> None:
    command = [*compress_command(files), "--dry-run", "--json"]
    result = CliRunner().invoke(main, [str(argument) for argument in command])
    assert result.exit_code == 2
    assert result.stderr == "Error: --json with --dry-run; leave out one of them; a dry run prints text\n"
    assert result.stdout == ""


def test_status_prints_the_same_values_as_its_table(files: Path, made: Result) -> None:
    printed, table = both("status", files / "run")
    assert printed["members"] == json.loads(made.stdout)["members"]
    assert_shows_members(table, printed["members"])
    assert table.startswith(f"{printed['model']} for {printed['task']} in {printed['folder']}\n")
    assert printed["targets"] == ["1.5x", "2x"]
    shown = [line.strip() for line in table.splitlines() if line.startswith("  ") and "│" not in line]
    remarks = {
        "fisher": " (from gradients of the loss)",
        "traces of branches": f" ({printed['traces']} so far)",
    }
    parts = [
        f"{'done' if done else 'to do':5}  {part}{remarks.get(part, '')}"
        for part, done in printed["done"].items()
    ]
    assert shown[: len(parts)] == parts
    assert len(parts) == 5
    spent = ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in printed["seconds"].items())
    assert f"so far: {spent}\n" in table
    assert printed["resumable"] is True


def test_evaluate_prints_the_same_values_as_its_table(files: Path, member: Path) -> None:
    data = ("--task", "classification", "--validation-file", files / "valid.csv", "--max-length", LENGTH)
    printed, table = both("evaluate", member, *data)
    wanted = [
        [split, metric, f"{value:.4f}"]
        for split, metrics in printed.items()
        for metric, value in metrics.items()
    ]
    assert len(wanted) == 2
    assert [row[:3] for row in rows_of(table)] == wanted


def test_inspect_prints_the_same_values_as_its_table(member: Path) -> None:
    printed, table = both("inspect", member)
    sizes = zip(printed["heads"], printed["widths"], printed["layer_parameters"], strict=True)
    wanted = [
        [
            str(layer),
            f"{heads}/{printed['dense_heads']}" if heads else "removed",
            f"{width}/{printed['dense_width']}" if width else "removed",
            f"{parameters:,}",
            f"{parameters / printed['dense_layer_parameters']:.0%}",
        ]
        for layer, (heads, width, parameters) in enumerate(sizes)
    ]
    rows = rows_of(table)
    assert rows[:-1] == wanted
    assert rows[-1][3] == f"{sum(printed['layer_parameters']):,}"
    title = "".join(table.split("┏")[0].split())  # it may have more than one line
    assert title == f"{printed['model_class']}in{member}"
    assert f"{printed['parameters']:,} parameters with embeddings and head\n" in table
    assert f"{printed['bytes_on_disk'] / 1e6:,.1f} MB of weights on disk\n" in table


def test_presets_prints_the_same_values_as_its_table() -> None:
    printed, table = both("presets")
    titles = [line.split(":")[0] for line in table.splitlines() if ": " in line]
    assert list(printed) == titles
    rows = rows_of(table)
    per_preset = len(rows) // len(printed)
    for index, values in enumerate(printed.values()):
        shown: dict[str, str] = dict(rows[index * per_preset : (index + 1) * per_preset])
        assert shown["speedups"] == " ".join(f"{speedup:g}x" for speedup in values["speedup"])
        total = values["train_batch_size"] * values["gradient_accumulation"]
        assert shown["batch size"].split()[0] == str(total)
        steps, epochs = values["dense_steps"], values["dense_epochs"]
        before = f"{steps:,} steps" if steps > 0 else f"{epochs:g} epochs"
        assert shown["training before pruning"] == before
        assert shown["training after each target"] == f"{values['epochs_per_step']:g} epochs"
        assert shown["dropout"] == ("as in the model" if values["dropout"] else "off")
        for heading, name in {
            "learning rate": "learning_rate",
            "tokens": "max_length",
            "weight decay": "weight_decay",
            "λ1 task": "task_weight",
            "λ2 logit": "logit_weight",
            "λ3 token": "token_weight",
            "temperature": "temperature",
            "calibration samples": "calibration_samples",
        }.items():
            assert float(shown[heading]) == values[name], heading


def remembered(function: Callable[..., Any], results: list[Any]) -> Callable[..., Any]:
    """Return a function that makes its first call only, keeps that result, and returns it ever after."""

    def call(*arguments: Any, **named: Any) -> Any:
        if not results:
            results.append(function(*arguments, **named))
        return results[0]

    return call


@pytest.mark.parametrize("regime", ["throughput", "generate"])
def test_benchmark_prints_the_same_values_as_its_table(
    files: Path, regime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both print one measurement, since two would differ."""
    results: list[Any] = []
    monkeypatch.setattr(measure, "compare_models", remembered(measure.compare_models, results))
    models = (files / "gpt2", files / "gpt2") if regime == "generate" else (files / "bert", files / "bert")
    lengths = ("--prompt-length", 4, "--new-tokens", 3) if regime == "generate" else ("--input-length", 8)
    limits = ("--threads", 1, "--clock", "cpu", "--max-seconds", 0.05)
    printed, table = both("benchmark", *models, "--regime", regime, *lengths, *limits)
    assert [row["model"] for row in printed["models"]] == [f"{path} ({n})" for n, path in enumerate(models)]
    for row in printed["models"]:
        seconds, ratio = results[0][row["model"]].seconds, results[0].speedup(row["model"])
        assert row["ms"] == pytest.approx(1e3 * seconds)
        assert (row["speedup"], row["low"], row["high"]) == (ratio.value, ratio.low, ratio.high)
        if regime == "generate":
            assert row["tokens_per_second"] == pytest.approx(3 / seconds)
    wanted = [
        [
            row["model"],
            row["engine"],
            _digits(row["ms"]),
            *([_digits(row["tokens_per_second"])] if regime == "generate" else []),
            f"{row['speedup']:.2f}x [{row['low']:.2f}, {row['high']:.2f}]",
            f"{row['parameters'] / 1e6:.2f}M",
            _digits(row["bytes"] / 1e6, 3),
        ]
        for row in printed["models"]
    ]
    assert rows_of(table) == wanted
    environment = printed["environment"]
    assert (environment["threads"], environment["clock"]) == (1, "cpu")
    assert f"batch {environment['batch_size']}, " in table

"""The command line, end to end, and its one-line error messages."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from latency_profiler import Environment, LatencyCurve, LatencyTable, _extras, _half
from latency_profiler.cli import main

QUICK = ["--max-seconds", "0.05", "--min-rounds", "5", "--threads", "1"]
FACTORIES = """
import torch

def build(size):
    return torch.nn.Linear(8, size) if size else torch.nn.Identity()

def raises(size):
    raise RuntimeError("no such size\\nat all")

def number(size):
    return size

def infinite(size):
    return lambda x: x * float("inf")

constant = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run each test in a temporary working folder that contains a module of factories."""
    (tmp_path / "latency_profiler_factories.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "latency_profiler_factories", raising=False)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def save_table(name: str, curves: dict[str, LatencyCurve], **changes: object) -> None:
    environment = Environment.current(batch_size=8, threads=1)
    values = {**environment.to_dict(), **changes}
    LatencyTable(Environment.from_dict(values), 0.0, curves).save(name)


V100 = LatencyCurve((3072, 302, 33), (14.8, 14.8 / 6.9, 1.0))
A100 = LatencyCurve((3072, 302, 33), (4.4, 4.4 / 3.1, 1.0))


def test_factory_in_the_working_folder_is_profiled() -> None:
    result = run(
        "run",
        "latency_profiler_factories:build",
        "--sizes",
        "16,4,0",
        "--shape",
        "2x3x8",
        "-o",
        "out.json",
        *QUICK,
    )
    assert result.exit_code == 0, result.output
    assert "saved out.json" in result.stdout
    loaded = LatencyTable.load("out.json")
    assert loaded.curves["build"].sizes == (16, 4, 0)
    environment = loaded.environment
    assert (environment.batch_size, environment.sequence_length, environment.threads) == (2, 3, 1)
    assert environment.details == {"inputs": "2x3x8"}


def test_built_in_blocks_are_profiled_with_their_options() -> None:
    sizes = ["--hidden", "12", "--heads", "3", "--intermediate", "8", "--batch", "2", "--sequence", "4"]
    assert (
        run("run", "transformer_layer", *sizes, "--clock", "cpu", "-o", "layer.json", *QUICK).exit_code == 0
    )
    layer = LatencyTable.load("layer.json")
    assert layer.curves["attention"].sizes == (3, 2, 1, 0)
    assert layer.curves["ffn"].sizes[:3] == (8, 7, 6)
    assert (layer.environment.clock, layer.environment.batch_size) == ("cpu", 2)
    result = run(
        "run", "transformer_ffn", *sizes, "--sizes", "8,0", "--name", "mlp", "--dtype", "float64", *QUICK
    )
    assert result.exit_code == 0, result.output
    assert LatencyTable.load("latency.json").curves["mlp"].sizes == (8, 0)


def test_examples_in_the_help_texts_run() -> None:
    """The examples run in this order because show, plot and diff need the table that run saves."""
    for command in ("run", "show", "plot", "diff"):
        page = " ".join(run(command, "--help").output.split())
        example = re.search(r"Example: latency-profiler (.*)$", page)
        assert example, page
        result = run(*shlex.split(example[1]))
        assert result.exit_code == 0, result.output
    assert LatencyTable.load("bert-base.json").curves["ffn"].sizes[-2:] == (33, 0)
    assert Path("latency.png").read_bytes().startswith(b"\x89PNG")


def test_show_prints_the_speedups_of_several_tables_side_by_side() -> None:
    save_table("v100.json", {"ffn": V100, "attention": LatencyCurve((12, 0), (2.0, 1.0))})
    save_table("a100.json", {"ffn": A100})
    result = run("show", "v100.json", "a100.json")
    assert result.exit_code == 0, result.output
    row = next(line for line in result.stdout.splitlines() if re.search(r"\b302\b", line))
    assert re.findall(r"[\d.]+x", row) == ["6.9x", "3.1x"]
    assert "v100 speedup" in result.stdout
    alone = run("show", "a100.json").stdout
    assert re.findall(r"([\d.]+)x", alone) == ["1.0", "3.1", "4.4"]


def test_names_with_brackets_are_printed_literally() -> None:
    save_table("[red].json", {"[/bold]": V100}, details={"cache": "[/dim]"})
    save_table("other.json", {"ffn": V100})
    result = run("show", "[red].json", "other.json")
    assert result.exit_code == 0, result.output
    assert "[red] " in result.stdout
    assert "cache [/dim]" in result.stdout
    changes = run("diff", "[red].json", "other.json").stdout
    assert "cache: [/dim] → None" in changes
    assert "[/bold]: only in [red].json" in changes


def test_diff_shows_changes_in_environment_and_times() -> None:
    save_table("before.json", {"ffn": LatencyCurve((4, 2, 0), (4.0, 2.0, 1.0)), "old": V100})
    save_table(
        "after.json", {"ffn": LatencyCurve((4, 2), (5.0, 2.0)), "new": V100}, threads=2, load_average=9.0
    )
    result = run("diff", "before.json", "after.json")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "  threads: 1 → 2" in lines
    assert "load" not in result.stdout
    assert re.findall(r"[+-][\d.]+%", result.stdout) == ["+25.0%", "+0.0%"]
    assert "ffn: median change 12.5%, largest change 25.0%; sizes in only one table: 1" in lines
    assert "old: only in before.json" in lines
    assert "new: only in after.json" in lines
    assert "environment: no differences" in run("diff", "before.json", "before.json").stdout


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_several_tables_are_plotted(ending: str) -> None:
    save_table("v100.json", {"ffn": V100})
    save_table("a100.json", {"ffn": A100, "attention": LatencyCurve((12, 0), (2.0, 1.0))})
    result = run("plot", "v100.json", "a100.json", "-o", f"figure.{ending}")
    assert result.exit_code == 0, result.output
    assert Path(f"figure.{ending}").stat().st_size > 5000


def test_curves_with_a_single_size_are_plotted() -> None:
    save_table("odd.json", {"whole": LatencyCurve((1,), (2.0,)), "gone": LatencyCurve((0,), (0.0,))})
    result = run("plot", "odd.json")
    assert result.exit_code == 0, result.output


def test_unknown_file_endings_of_plots_are_reported() -> None:
    save_table("v100.json", {"ffn": V100})
    result = run("plot", "v100.json", "-o", "figure.doc")
    assert result.exit_code == 2
    assert result.stderr == "Error: cannot draw to figure.doc; use a file ending in .png, .svg, .pdf\n"


def test_plot_without_matplotlib_suggests_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    save_table("v100.json", {"ffn": V100})
    monkeypatch.setattr(_extras, "find_spec", lambda name: None)
    result = run("plot", "v100.json")
    assert result.exit_code == 7
    assert result.stderr == "Error: plots need matplotlib; run: pip install 'latency-profiler[plot]'\n"


SMALL = ("--sizes", "2,0", "--shape", "2x8", *QUICK)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ("run", "latency_profiler_factories:raises", *SMALL),
            1,
            "build(2) raised RuntimeError: no such size; ",
        ),
        (
            ("run", "latency_profiler_factories:number", *SMALL),
            1,
            "build(2) returned int, which is not callable",
        ),
        (
            ("run", "latency_profiler_factories:infinite", *SMALL),
            8,
            "build(2) returned non-finite values",
        ),
        (
            ("run", "latency_profiler_factories:constant", *SMALL),
            1,
            "constant in latency_profiler_factories is not callable",
        ),
        (
            ("run", "latency_profiler_factories:none", *SMALL),
            1,
            "none in latency_profiler_factories does not exist",
        ),
        (("run", "no_such_module:build", *SMALL), 1, "cannot import no_such_module: ModuleNotFoundError"),
        (
            ("run", "transformer_lair", *SMALL),
            1,
            "'transformer_lair' is not the name of a factory; use package.module:function",
        ),
        (("run", "a:b", "--sizes", "0,3,1", "--shape", "2x8"), 1, "cannot import a"),
        (
            ("run", "latency_profiler_factories:build", "--sizes", "0,3,1", "--shape", "2x8"),
            2,
            "1 comes after 3",
        ),
        (
            ("run", "latency_profiler_factories:build", "--sizes", "2,-1", "--shape", "2x8"),
            2,
            "size -1 is negative",
        ),
        (
            ("run", "latency_profiler_factories:build", "--sizes", "2", "--shape", "2by8"),
            2,
            "cannot parse shape '2by8'",
        ),
        (
            ("run", "latency_profiler_factories:build", "--sizes", "2", "--shape", "2x7"),
            1,
            "failed when called with",
        ),
        (
            ("run", "latency_profiler_factories:build"),
            2,
            "needs sizes and input shapes; add options such as --sizes",
        ),
        (
            ("run", "latency_profiler_factories:build", *SMALL, "--heads", "2"),
            2,
            "--heads cannot be used with",
        ),
        (
            ("run", "latency_profiler_factories:build", *SMALL, "--device", "moon"),
            2,
            "device 'moon' cannot be used",
        ),
        (("run", "latency_profiler_factories:build", *SMALL, "--rel-error", "0"), 2, "rel_error is 0.0"),
        (
            ("run", "latency_profiler_factories:build", *SMALL, "-o", "no/out.json"),
            2,
            "cannot write no/out.json",
        ),
        (("run", "transformer_ffn", "--shape", "2x8"), 2, "--shape cannot be used with transformer_ffn"),
        (("run", "transformer_layer", "--sizes", "2,0"), 2, "--sizes cannot be used with transformer_layer"),
        (("run", "transformer_layer", "--name", "x"), 2, "--name cannot be used with transformer_layer"),
        (("run", "transformer_attention", "--heads", "7"), 2, "hidden size 768 is not a multiple of 7 heads"),
        (("show", "none.json"), 1, "cannot read none.json: No such file"),
        (("show", "latency_profiler_factories.py"), 2, "latency_profiler_factories.py is not JSON"),
        (("plot", "none.json"), 1, "cannot read none.json: No such file"),
        (("diff", "none.json", "none.json"), 1, "cannot read none.json"),
    ],
)
def test_errors_are_one_line_with_a_hint(arguments: tuple[str, ...], code: int, message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert result.stderr.startswith("Error: ")
    assert "; " in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(Path.cwd().glob("*.json"))


def test_half_precision_that_would_kill_the_process_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_half, "_PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)  # {}")
    result = run("run", "transformer_ffn", "--dtype", "bfloat16", *QUICK)
    assert result.exit_code == 2
    assert (
        "bfloat16 does not work on this CPU: a test process ended with code -4; use float32" in result.stderr
    )
    _half.check_half_precision(torch.float32, torch.device("cpu"))
    monkeypatch.setattr(_half, "_PROBE", "pass  # {}")
    _half.check_half_precision(torch.bfloat16, torch.device("cpu"))


def test_package_runs_as_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["latency_profiler", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("latency_profiler", run_name="__main__")
    assert ended.value.code == 0
    assert "Usage: latency-profiler" in capsys.readouterr().out

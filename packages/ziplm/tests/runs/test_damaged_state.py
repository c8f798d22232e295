"""A state file that is damaged, in whatever way, is a bad run with exit code 5; nothing of it is believed."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file
from ziplm.cli import main
from ziplm_compressed import command_line, options_for, write_files

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "nested": lambda data: b"[" * 10**5,
    "not UTF-8": lambda data: b"\xff\xfe\x00",
    "a list": lambda data: b"[]",
    "a number": lambda data: b"1" + b"0" * 400,
    "a surrogate": lambda data: b'{"\\ud800": "\\udfff"}',
    "an empty object": lambda data: b"{}",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make files, and a run of a recover target and a speedup with all its state."""
    folder = tmp_path_factory.mktemp("made")
    files = write_files(folder / "files")
    ziplm.compress(**options_for(files, "bert", folder / "run", speedup=[2], recover=[0.5]))
    return folder


@pytest.fixture
def run(made: Path) -> Any:
    """Return the run without its members, so that everything is read again; restore it afterwards."""
    kept = made / "kept"
    if not kept.exists():
        shutil.copytree(made / "run", kept)
    for path in (made / "run").glob("*/metrics.json"):
        shutil.rmtree(path.parent)
    yield made / "run"
    shutil.rmtree(made / "run")
    shutil.copytree(kept, made / "run")


def compress(folder: Path) -> Result:
    """Call `ziplm compress`, to resume the run."""
    options = options_for(folder / "files", "bert", folder / "run", speedup=2, recover=0.5)
    return CliRunner().invoke(main, command_line(options))


def assert_bad_run(result: Result, name: str) -> None:
    assert result.exit_code == 5, (result.stderr, result.exception)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert name in line
    assert "is damaged" in line or "not a trace" in line, line
    assert len(line) <= 507


FILES = [
    "config.toml",
    "latency.json",
    "fingerprints.json",
    "state/seconds.json",
    "state/cpu-seconds.json",
    "state/dense-metrics.json",
    "state/dense-predictions.safetensors",
    "state/fisher.safetensors",
    "state/traces/layer0.ffn.safetensors",
    "state/priors/layer0.ffn.safetensors",
    "state/targets/2x/search.json",
    "state/targets/2x/found.json",
    "state/targets/2x/fitted.json",
    "state/targets/recover0.5/recover.json",
]


def test_all_kinds_of_state_are_tested(made: Path) -> None:
    """Control: a new kind of state file needs a line in `FILES`."""
    import re

    def kind(path: str) -> str:
        return re.sub(r"layer\d\.\w+|2x|recover0\.5|attempt\d", "*", path).replace("*/*", "*")

    state = {kind(path.relative_to(made / "run").as_posix()) for path in (made / "run/state").rglob("*.*")}
    state -= {"state/targets/*", "state/targets/*.*", "state/traces", "state/priors"}
    assert {name for name in state if name.endswith((".json", ".safetensors"))} == {
        kind(name) for name in FILES if name.startswith("state/")
    }


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(made: Path, run: Path, name: str, damage: str) -> None:
    path = run / name
    if name.endswith("search.json"):
        (path.parent / "found.json").unlink()
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    if name.endswith("seconds.json") and damage == "an empty object":
        return  # no stage has ended yet
    assert_bad_run(compress(made), Path(name).name)


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return a function that changes a document in a file."""

    def edit(path: Path) -> None:
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return edit


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    """Return a function that changes tensors in a file."""

    def edit(path: Path) -> None:
        held = load_file(path)
        change(held)
        save_file({name: tensor.contiguous() for name, tensor in held.items()}, path)

    return edit


FOUND, FITTED = "state/targets/2x/found.json", "state/targets/2x/fitted.json"
RECOVER = "state/targets/recover0.5/recover.json"
PREDICTIONS, FISHER = "state/dense-predictions.safetensors", "state/fisher.safetensors"
PRIORS, TRACE = "state/priors/layer0.ffn.safetensors", "state/traces/layer0.ffn.safetensors"
EDITS: list[tuple[str, str, Callable[[Path], None]]] = [
    ("a level too large", FOUND, edited(lambda d: d["levels"].__setitem__(0, 99))),
    ("a negative level", FOUND, edited(lambda d: d["levels"].__setitem__(0, -1))),
    ("a level that is true", FOUND, edited(lambda d: d["levels"].__setitem__(0, True))),
    ("a level too few", FOUND, edited(lambda d: d["levels"].pop())),
    ("over budget", FOUND, edited(lambda d: d.update(levels=[0] * len(d["levels"])))),
    ("unknown prior", FOUND, edited(lambda d: d.update(prior="other"))),
    ("a loss that is text", FOUND, edited(lambda d: d.update(start_loss="low"))),
    ("another key", FOUND, edited(lambda d: d.update(more=1))),
    ("no losses", FOUND, edited(lambda d: d.update(prior_losses={}))),
    ("other levels", FITTED, edited(lambda d: d.update(levels=[0] * len(d["levels"])))),
    ("a measurement", FITTED, edited(lambda d: d["rounds"].append({"speedup": 9.0}))),
    ("levels of text", FITTED, edited(lambda d: d.update(levels="0" * len(d["levels"])))),
    ("another speedup", RECOVER, edited(lambda d: d.update(speedup=2.34))),
    ("speedup below one", RECOVER, edited(lambda d: d.update(speedup=0.5))),
    ("no steps", RECOVER, edited(lambda d: d.update(steps=[]))),
    ("wanted is text", RECOVER, edited(lambda d: d.update(wanted="all"))),
    ("negative seconds", "state/seconds.json", edited(lambda d: d.update(search=-1))),
    ("seconds of text", "state/seconds.json", edited(lambda d: d.update(search="long"))),
    (
        "nan",
        PREDICTIONS,
        tensors(lambda t: t.update({k: v * torch.nan for k, v in t.items()})),
    ),
    ("another split", PREDICTIONS, tensors(lambda t: t.update({"test/x": torch.ones(2)}))),
    ("fewer examples", PREDICTIONS, tensors(lambda t: t.update({k: v[:-1] for k, v in t.items()}))),
    ("nothing", PREDICTIONS, tensors(lambda t: t.clear())),
    ("nan", FISHER, tensors(lambda t: t["gamma.layer0.ffn"].fill_(torch.nan))),
    ("nan", FISHER, tensors(lambda t: t["squares.layer0.ffn"].fill_(torch.inf))),
    ("another width", FISHER, tensors(lambda t: t.update({"gamma.layer0.ffn": torch.ones(3, 3)}))),
    ("fewer tokens", FISHER, tensors(lambda t: t.update({"squares.layer0.ffn": torch.ones(3)}))),
    ("a branch less", FISHER, tensors(lambda t: t.pop("gamma.layer0.ffn"))),
    ("nan", PRIORS, tensors(lambda t: t["own"].fill_(torch.nan))),
    ("one more", PRIORS, tensors(lambda t: t.update(own=torch.ones(99, dtype=torch.float64)))),
    ("whole numbers", PRIORS, tensors(lambda t: t.update(own=t["own"].long()))),
    ("a prior less", PRIORS, tensors(lambda t: t.pop("stream"))),
    (
        "of another branch",
        TRACE,
        lambda path: shutil.copy(path.with_name("layer0.attention.safetensors"), path),
    ),
]


@pytest.mark.parametrize(("what", "name", "edit"), EDITS, ids=[f"{Path(n).name}-{w}" for w, n, _ in EDITS])
def test_state_that_cannot_have_been_computed_is_not_believed(
    made: Path, run: Path, what: str, name: str, edit: Callable[[Path], None]
) -> None:
    if name.endswith("fisher.safetensors"):  # it is used where traces are missing
        shutil.rmtree(run / "state" / "traces")
    edit(run / name)
    assert_bad_run(compress(made), Path(name).name)


def test_an_untouched_run_resumes(made: Path, run: Path) -> None:
    """Control of all tests above."""
    result = compress(made)
    assert result.exit_code == 0, result.output
    for target in ("2x", "recover0.5"):
        weights = [made / folder / target / "model.safetensors" for folder in ("kept", "run")]
        assert weights[0].read_bytes() == weights[1].read_bytes()


REPORT = "2x/metrics.json"
REPORTS: list[tuple[str, Callable[[Path], None]]] = [
    ("no metric", edited(lambda d: d.pop("metric"))),
    ("text", edited(lambda d: d["metric"].update(dense="high"))),
    ("an interval of one", edited(lambda d: d["metric"].update(interval=[1.0]))),
    ("sizes of text", edited(lambda d: d.update(sizes={"attention": ["a"]}))),
    ("a size too many", edited(lambda d: next(iter(d["sizes"].values())).append(1))),
    ("zero speedup", edited(lambda d: d["predicted"].update(speedup=0))),
    ("no layers", edited(lambda d: d["dense_parameters"].update(layers=0))),
    ("half", lambda path: path.write_bytes(path.read_bytes()[:200])),
    ("nested", lambda path: path.write_text("[" * 10**5)),
    ("a list", lambda path: path.write_text("[]")),
]


@pytest.mark.parametrize("command", [["status"], ["status", "--json"], ["plot"]], ids=" ".join)
@pytest.mark.parametrize(("what", "edit"), REPORTS, ids=[what for what, _ in REPORTS])
def test_status_and_plot_name_a_damaged_report(
    made: Path, tmp_path: Path, command: list[str], what: str, edit: Callable[[Path], None]
) -> None:
    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    edit(run / REPORT)
    assert_bad_run(CliRunner().invoke(main, [*command, str(run)]), "metrics.json")


@pytest.mark.parametrize(
    "family",
    ["[", "[]", "{}", "[" * 10**5, '{"targets": ["2x"], "trainings": 1, "epochs": "x", "steps": 1}'],
    ids=["half", "a list", "an empty object", "nested", "text"],
)
def test_status_names_a_damaged_report_on_the_family(made: Path, tmp_path: Path, family: str) -> None:
    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    (run / "family.json").write_text(family)
    assert_bad_run(CliRunner().invoke(main, ["status", str(run)]), "family.json")


NOW = {"stage": "search", "pid": 1, "host": "elsewhere", "since": "now"}
LEFT = {**NOW, "since": "2026-11-18 03:00:00+00:00", "stage_seconds": 1.0, "later_seconds": 2.0}
DAMAGED_TIMES = [
    {**LEFT, "since": "now"},
    {**LEFT, "since": "2026-11-18 03:00:00"},
    {**LEFT, "later_seconds": -1},
    {**LEFT, "stage_seconds": "1"},
    {**NOW, "later_seconds": 1},
]


@pytest.mark.parametrize(
    "now",
    [
        *({}, [], "{"),
        *({**NOW, **wrong} for wrong in ({"pid": "1"}, {"pid": 0}, {"pid": True}, {"stage": None})),
        *DAMAGED_TIMES,
    ],
    ids=str,
)
def test_status_names_a_damaged_stage(made: Path, tmp_path: Path, now: Any) -> None:
    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    (run / "state" / "now.json").write_text(now if isinstance(now, str) else json.dumps(now))
    assert_bad_run(CliRunner().invoke(main, ["status", str(run)]), "now.json")


def test_status_of_a_process_number_that_is_none(made: Path, tmp_path: Path) -> None:
    import socket

    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    now = {**NOW, "pid": 2**62, "host": socket.gethostname()}
    (run / "state" / "now.json").write_text(json.dumps(now))
    result = CliRunner().invoke(main, ["status", str(run)])
    assert result.exit_code == 0, result.output


def test_bytes_changed_at_random_never_give_an_unexpected_error(made: Path, run: Path) -> None:
    """A change may go unnoticed where any value is possible; it never ends in an error of the program."""
    chosen = random.Random(0)
    codes = []
    for _ in range(24):
        name = chosen.choice(FILES)
        path = run / name
        before = path.read_bytes()
        data = bytearray(before)
        for _ in range(chosen.randint(1, 4)):
            data[chosen.randrange(len(data))] = chosen.randrange(256)
        path.write_bytes(bytes(data))
        result = compress(made)
        codes.append(result.exit_code)
        assert result.exit_code in (0, 5), (name, result.stderr)
        path.write_bytes(before)
        for report in run.glob("*/metrics.json"):
            shutil.rmtree(report.parent)
    assert set(codes) >= {5}

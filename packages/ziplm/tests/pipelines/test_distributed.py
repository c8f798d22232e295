"""Two processes make what one process makes, share the work, and end together."""

import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import pytest
import torch
import ziplm
from obs_structured import Trace
from safetensors.torch import load_file
from ziplm.files import read_json
from ziplm.options.options import Options
from ziplm.options.toml import save_options
from ziplm_several import Passes, notes_in, run_together
from ziplm_shared import shared_gradual_options, shared_options, write_shared_files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shared_files(tmp_path_factory.mktemp("files"))


@dataclass(frozen=True)
class Alone:
    """A run folder made by one process, and its forward passes by stage."""

    folder: Path
    passes: Counter[str]


@pytest.fixture(scope="module")
def alone(files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Alone]:
    """Make runs with one process, by name."""
    folder = tmp_path_factory.mktemp("alone")
    made = {}
    for name, options in {
        "bert": shared_options(files, "bert", folder / "bert"),
        "other": shared_options(files, "bert", folder / "other", seed=1),
        "gpt2": shared_options(files, "gpt2", folder / "gpt2"),
        "embedding": shared_options(files, "embedding", folder / "embedding", recover=[0.8]),
        "gradual": shared_gradual_options(files, folder / "gradual"),
    }.items():
        passes = Passes()
        with passes.counted():
            ziplm.compress(**options, progress=passes)
        assert (folder / name).is_dir()
        made[name] = Alone(folder / name, passes.by_stage)
    return made


def orders_in(run: Path) -> dict[str, list[int]]:
    files = sorted(run.glob("state/**/traces/*.safetensors"))
    return {str(file.relative_to(run)): Trace.load(file).order.tolist() for file in files}


def priors_in(run: Path) -> dict[str, torch.Tensor]:
    """Read the priors, which outlive a step's traces, in units of the largest."""
    found = {}
    for file in sorted(run.glob("state/**/priors/*.safetensors")):
        for name, prior in load_file(file).items():
            found[f"{file.relative_to(run)} {name}"] = prior / prior.max()
    return found


def levels_in(run: Path) -> dict[str, list[int]]:
    return {str(file.relative_to(run)): read_json(file)["levels"] for file in run.glob("state/**/f*.json")}


def losses_in(run: Path, target: str) -> list[float]:
    found = read_json(run / "state" / "targets" / target / "found.json")
    return [*found["prior_losses"].values(), found["start_loss"], found["searched_loss"]]


def weights_in(run: Path, target: str) -> dict[str, torch.Tensor]:
    return load_file(run / target / "model.safetensors")


def trained_in(run: Path, target: str) -> dict[str, torch.Tensor]:
    """Read weights except for the biases of keys, which change no output: Adam amplifies their rounding."""
    return {name: value for name, value in weights_in(run, target).items() if "key.bias" not in name}


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest difference of two weights; infinite if the shapes differ."""
    if {name: value.shape for name, value in one.items()} != {k: v.shape for k, v in other.items()}:
        return float("inf")
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@dataclass(frozen=True)
class Pair:
    """One run, made by one process and by two.

    Attributes:
        one: run folder of one process.
        two: run folder of two processes.
        passes: forward passes of the one process, by stage.
        notes: notes of the two processes.
    """

    one: Path
    two: Path
    passes: Counter[str]
    notes: list[dict[str, Any]]


@pytest.fixture(scope="module", params=["bert", "gpt2", "embedding"])
def pair(
    request: pytest.FixtureRequest,
    files: Path,
    alone: dict[str, Alone],
    tmp_path_factory: pytest.TempPathFactory,
) -> Pair:
    folder = tmp_path_factory.mktemp("together")
    more = {"recover": [0.8]} if request.param == "embedding" else {}
    options = shared_options(files, request.param, folder / "run", **more)
    assert run_together(options, folder / "notes") == [0, 0]
    one = alone[request.param]
    return Pair(one.folder, folder / "run", one.passes, notes_in(folder / "notes"))


def test_two_processes_find_what_one_finds(pair: Pair) -> None:
    assert len(orders_in(pair.one)) == 6
    assert orders_in(pair.two) == orders_in(pair.one)
    assert levels_in(pair.two) == levels_in(pair.one)
    assert losses_in(pair.two, "2x") == pytest.approx(losses_in(pair.one, "2x"), rel=1e-4)
    assert difference(weights_in(pair.two, "2x"), weights_in(pair.one, "2x")) < 1e-4


def test_tokens_keep_their_order_when_processes_share_the_batches(pair: Pair) -> None:
    one, two = (load_file(run / "state/fisher.safetensors") for run in (pair.one, pair.two))
    assert list(two) == list(one)
    for name, expected in one.items():
        torch.testing.assert_close(two[name], expected)
        if name.startswith("squares"):
            assert not torch.allclose(two[name], expected.roll(1))


def test_runs_with_different_seeds_can_be_told_apart(alone: dict[str, Alone]) -> None:
    one, other = alone["bert"].folder, alone["other"].folder
    assert orders_in(one) != orders_in(other)
    assert difference(weights_in(one, "2x"), weights_in(other, "2x")) > 1e-2


def test_two_processes_share_the_forward_passes_of_one(pair: Pair) -> None:
    """The second process makes half of the search's passes, and none of the refit's and evaluation's.

    Of an odd number of batches, the first process has one more.
    """
    first, second = (Counter(notes["passes"]) for notes in pair.notes)
    assert first.total() + second.total() == pair.passes.total()  # nothing is computed twice
    assert first["search"] == pytest.approx(pair.passes["search"] / 2, rel=0.05)
    assert first["refit"] > 0.9 * pair.passes["refit"]  # the passes of the comparison after it are shared
    evaluations = {stage: count for stage, count in pair.passes.items() if stage.startswith("evaluate")}
    assert len(evaluations) >= 2
    assert {stage: first[stage] for stage in evaluations} == evaluations


def test_two_processes_share_the_branches_and_the_first_writes(pair: Pair) -> None:
    first, second = pair.notes
    assert first["made"] == second["made"]
    assert (first["calls"]["prune"], second["calls"]["prune"]) == (3, 3)
    assert first["calls"]["save_pretrained"] == len(first["made"])
    assert "save_pretrained" not in second["calls"]


def test_only_the_first_process_measures(files: Path, tmp_path: Path) -> None:
    quick = {"latency_table": None, "profile_seconds": 0.5, "measure_seconds": 0.5, "evaluations": 0}
    options = shared_options(files, "bert", tmp_path / "run", speedup=[], sparsity=[0.5], **quick)
    assert run_together(options, tmp_path / "notes") == [0, 0]
    first, second = notes_in(tmp_path / "notes")
    assert (first["calls"]["profile_families"], first["calls"]["compare"]) == (1, 1)
    assert not {"profile_families", "compare"} & set(second["calls"])
    assert first["made"] == second["made"]
    assert first["made"][0]["measured"]["speedup"] > 0


def test_two_processes_compress_gradually_like_one(
    files: Path, alone: dict[str, Alone], tmp_path: Path
) -> None:
    one, two = alone["gradual"].folder, tmp_path / "run"
    assert run_together(shared_gradual_options(files, two), tmp_path / "notes") == [0, 0]
    assert len(priors_in(one)) == 12 * 4
    torch.testing.assert_close(priors_in(two), priors_in(one), rtol=0, atol=0.01)
    assert not list(two.rglob("traces/*"))  # they are deleted when their step is finished
    assert levels_in(two) == levels_in(one)
    assert difference(trained_in(one, "dense"), trained_in(files, "bert")) > 1e-3
    for target, tolerance in (("dense", 1e-5), ("1.5x", 5e-4), ("2.5x", 5e-4)):
        assert difference(trained_in(two, target), trained_in(one, target)) < tolerance
    report, expected = (read_json(run / "family.json") for run in (two, one))
    assert (report["steps"], report["examples"]) == (expected["steps"], expected["examples"])


@pytest.mark.parametrize("killed", [False, True], ids=["error", "killed"])
def test_a_failing_process_ends_both_and_any_number_of_processes_resumes(
    files: Path, alone: dict[str, Alone], tmp_path: Path, killed: bool
) -> None:
    options = shared_options(files, "bert", tmp_path / "run")
    in_the_search = tmp_path / "run/state/targets/2x/search.json"
    codes = run_together(options, tmp_path / "notes", fail_after=in_the_search, killed=killed)
    assert codes[0] not in (0, None)
    assert codes[1] == (-signal.SIGKILL if killed else 1)
    assert in_the_search.exists()
    assert not (tmp_path / "run" / "2x").exists()
    if killed:
        ziplm.compress(**options)
    else:
        assert run_together(options, tmp_path / "notes") == [0, 0]
    expected = alone["bert"].folder
    assert levels_in(tmp_path / "run") == levels_in(expected)
    assert difference(weights_in(tmp_path / "run", "2x"), weights_in(expected, "2x")) < 1e-4


def test_an_error_of_the_first_process_ends_all(files: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "state").mkdir(parents=True)
    with filelock.FileLock(tmp_path / "run" / "state" / "lock"):
        codes = run_together(shared_options(files, "bert", tmp_path / "run"), tmp_path / "notes")
    assert codes == [1, 1]
    assert not (tmp_path / "run" / "config.toml").exists()


def test_torchrun_prints_the_family_once(files: Path, alone: dict[str, Alone], tmp_path: Path) -> None:
    save_options(Options.of(shared_options(files, "bert", tmp_path / "run")), tmp_path / "config.toml")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launch, "-m", "ziplm", "compress", "--config", str(tmp_path / "config.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            # Imports alone take seconds, and minutes on a busy machine.
            output, errors = running.communicate(timeout=280)
        except subprocess.TimeoutExpired:
            running.terminate()  # upon which torchrun ends its processes, too
            raise
    assert running.returncode == 0, errors
    assert output.count("predicted") == 1, output
    assert levels_in(tmp_path / "run") == levels_in(alone["bert"].folder)

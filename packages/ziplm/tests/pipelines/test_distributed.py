"""Several processes make what one makes, share the work, and end together."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import filelock
import pytest
import torch
import ziplm
from obs_structured import Trace
from safetensors.torch import load_file
from ziplm import UsageError
from ziplm.options.options import Options
from ziplm.files import read_json
from ziplm.gradual import training_options
from ziplm.runs.workers import ALONE, Workers, join
from ziplm_pipeline import CLASSIFIER, DECODER, linear_table, lively_model
from ziplm_several import notes_of, run_together
from ziplm_text import bare_tokenizer, letter_tokenizer, write_rows


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dense models, data for both, and a latency table."""
    folder = tmp_path_factory.mktemp("files")
    ziplm.save(lively_model(CLASSIFIER), folder / "bert", letter_tokenizer())
    ziplm.save(lively_model(DECODER), folder / "gpt2", bare_tokenizer())
    generator = torch.Generator().manual_seed(0)
    rows = []
    for index in range(80):
        letters = torch.randint(97, 123, (2 + index % 6,), generator=generator).tolist()
        rows.append({"text": " ".join(map(chr, letters)), "label": letters[0] % 2})
    write_rows(folder / "train.csv", rows)
    write_rows(folder / "valid.csv", rows[:20])
    even = torch.randint(97, 123, (80, 5), generator=generator).tolist()
    write_rows(folder / "even.csv", [{"text": " ".join(map(chr, row)), "label": row[0] % 2} for row in even])
    write_rows(folder / "texts.csv", [{"text": row["text"]} for row in rows])
    (folder / "train.txt").write_text(" ".join(row["text"] for row in 6 * rows))
    (folder / "valid.txt").write_text(" ".join(row["text"] for row in rows[:20]))
    linear_table().save(folder / "latency.json")
    return folder


def options_for(files: Path, family: str, output: Path, **more: Any) -> dict[str, Any]:
    task, train, valid = {
        "bert": ("classification", "train.csv", "valid.csv"),
        "gpt2": ("causal-lm", "train.txt", "valid.txt"),
        "embedding": ("embedding", "texts.csv", "texts.csv"),
    }[family]
    return {
        "model": str(files / ("gpt2" if family == "gpt2" else "bert")),
        "task": task,
        "output": str(output),
        "train_file": str(files / train),
        "validation_file": str(files / valid),
        "latency_table": str(files / "latency.json"),
        "sequence_length": 16,
        "calibration_samples": 40,
        "search_samples": 12,
        "calibration_batch_size": 6,  # seven batches: shares are not equal
        "evaluations": 6,
        "threads": 1,
        "speedup": [2],
        **more,
    }


def gradual_options(files: Path, output: Path) -> dict[str, Any]:
    """With examples of one length: else the mean of two halves of a batch is not that of its tokens."""
    return options_for(files, "bert", output, **{**GRADUAL, "train_file": str(files / "even.csv")})


GRADUAL = {
    "mode": "gradual",
    "speedup": [1.5, 2.5],
    "dense_steps": 2,
    "steps_per_target": 4,
    "train_batch_size": 8,
    "learning_rate": 1e-3,
    "dropout": False,
    "calibration_batch_size": 64,  # one batch: the second process has none
}


@pytest.fixture(scope="module")
def alone(files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of one process, by name."""
    folder = tmp_path_factory.mktemp("alone")
    for name, options in {
        "bert": options_for(files, "bert", folder / "bert"),
        "other": options_for(files, "bert", folder / "other", seed=1),
        "gpt2": options_for(files, "gpt2", folder / "gpt2"),
        "embedding": options_for(files, "embedding", folder / "embedding", recover=[0.8]),
        "gradual": gradual_options(files, folder / "gradual"),
    }.items():
        ziplm.compress(**options)
        assert (folder / name).is_dir()
    return {path.name: path for path in folder.iterdir()}


def orders_in(run: Path) -> dict[str, list[int]]:
    files = sorted(run.glob("state/**/traces/*.safetensors"))
    return {str(file.relative_to(run)): Trace.load(file).order.tolist() for file in files}


def priors_in(run: Path) -> dict[str, torch.Tensor]:
    """What stays of a step's traces, the harm of every level, in units of the largest."""
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
    """Without biases of keys: no output depends on them, and Adam makes steps of their rounding errors."""
    return {name: value for name, value in weights_in(run, target).items() if "key.bias" not in name}


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest of all weights; infinite if the shapes are not the same."""
    if {name: value.shape for name, value in one.items()} != {k: v.shape for k, v in other.items()}:
        return float("inf")
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.fixture(scope="module", params=["bert", "gpt2", "embedding"])
def pair(
    request: pytest.FixtureRequest,
    files: Path,
    alone: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Path, list[dict[str, Any]]]:
    """The runs of one process and of two, and what the two did."""
    folder = tmp_path_factory.mktemp("together")
    more = {"recover": [0.8]} if request.param == "embedding" else {}
    options = options_for(files, request.param, folder / "run", **more)
    assert run_together(options, folder / "notes") == [0, 0]
    return alone[request.param], folder / "run", notes_of(folder / "notes")


def test_two_processes_find_what_one_finds(pair: tuple[Path, Path, list[dict[str, Any]]]) -> None:
    one, two, _ = pair
    assert len(orders_in(one)) == 6
    assert orders_in(two) == orders_in(one)
    assert levels_in(two) == levels_in(one)
    assert losses_in(two, "2x") == pytest.approx(losses_in(one, "2x"), rel=1e-4)
    assert difference(weights_in(two, "2x"), weights_in(one, "2x")) < 1e-4


def test_tokens_stay_in_their_order(pair: tuple[Path, Path, list[dict[str, Any]]]) -> None:
    one, two, _ = (load_file(run / "state/metric.safetensors") for run in (*pair[:2], pair[0]))
    assert list(two) == list(one)
    for name, expected in one.items():
        torch.testing.assert_close(two[name], expected)
        if name.startswith("squares"):
            assert not torch.allclose(two[name], expected.roll(1))


def test_another_seed_is_told_apart(alone: dict[str, Path]) -> None:
    one, other = alone["bert"], alone["other"]
    assert orders_in(one) != orders_in(other)
    assert difference(weights_in(one, "2x"), weights_in(other, "2x")) > 1e-2


def test_the_work_is_shared_and_the_first_one_writes(pair: tuple[Path, Path, list[dict[str, Any]]]) -> None:
    first, second = pair[2]
    assert first["made"] == second["made"]
    assert (first["calls"]["prune_branch"], second["calls"]["prune_branch"]) == (3, 3)
    assert first["calls"]["Evaluator._evaluate"] == second["calls"]["Evaluator._evaluate"] > 0
    assert first["calls"]["save"] == len(first["made"])
    assert not {"refit", "save"} & set(second["calls"])


def test_the_first_process_measures(files: Path, tmp_path: Path) -> None:
    quick = {"latency_table": None, "profile_seconds": 0.5, "measure_seconds": 0.5, "evaluations": 0}
    options = options_for(files, "bert", tmp_path / "run", speedup=[], sparsity=[0.5], **quick)
    assert run_together(options, tmp_path / "notes") == [0, 0]
    first, second = notes_of(tmp_path / "notes")
    assert (first["calls"]["latency_table"], first["calls"]["measure"]) == (1, 1)
    assert not {"latency_table", "measure"} & set(second["calls"])
    assert first["made"] == second["made"]
    assert first["made"][0]["measured"]["speedup"] > 0


def test_gradual_compression_by_two(files: Path, alone: dict[str, Path], tmp_path: Path) -> None:
    one, two = alone["gradual"], tmp_path / "run"
    assert run_together(gradual_options(files, two), tmp_path / "notes") == [0, 0]
    assert len(priors_in(one)) == 12 * 4
    torch.testing.assert_close(priors_in(two), priors_in(one), rtol=0, atol=0.01)
    assert not list(two.rglob("traces/*"))  # those of a step go when it is done
    assert levels_in(two) == levels_in(one)
    assert difference(trained_in(one, "dense"), trained_in(files, "bert")) > 1e-3
    for target, tolerance in (("dense", 1e-5), ("1.5x", 5e-4), ("2.5x", 5e-4)):
        assert difference(trained_in(two, target), trained_in(one, target)) < tolerance
    report, expected = (read_json(run / "family.json") for run in (two, one))
    assert (report["steps"], report["examples"]) == (expected["steps"], expected["examples"])


@pytest.mark.parametrize("killed", [False, True], ids=["error", "killed"])
def test_a_failing_process_ends_both_and_another_number_goes_on(
    files: Path, alone: dict[str, Path], tmp_path: Path, killed: bool
) -> None:
    options = options_for(files, "bert", tmp_path / "run")
    codes = run_together(options, tmp_path / "notes", "ziplm.stitch:Evaluator.__call__", 5, killed)
    assert codes[0] not in (0, None)
    assert codes[1] == (-signal.SIGKILL if killed else 1)
    assert not (tmp_path / "run" / "2x").exists()
    if killed:
        ziplm.compress(**options)
    else:
        assert run_together(options, tmp_path / "notes") == [0, 0]
    assert levels_in(tmp_path / "run") == levels_in(alone["bert"])
    assert difference(weights_in(tmp_path / "run", "2x"), weights_in(alone["bert"], "2x")) < 1e-4


def test_an_error_of_the_first_process_reaches_all(files: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "state").mkdir(parents=True)
    with filelock.FileLock(tmp_path / "run" / "state" / "lock"):
        codes = run_together(options_for(files, "bert", tmp_path / "run"), tmp_path / "notes")
    assert codes == [1, 1]
    assert not (tmp_path / "run" / "config.toml").exists()


def test_torchrun_prints_once(files: Path, alone: dict[str, Path], tmp_path: Path) -> None:
    Options.of(options_for(files, "bert", tmp_path / "run")).save(tmp_path / "config.toml")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launch, "-m", "ziplm", "compress", "--config", str(tmp_path / "config.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            output, errors = running.communicate(
                timeout=280
            )  # seconds of importing, minutes on a busy machine
        except subprocess.TimeoutExpired:
            running.terminate()  # upon which torchrun ends its processes, too
            raise
    assert running.returncode == 0, errors
    assert output.count("predicted") == 1, output
    assert levels_in(tmp_path / "run") == levels_in(alone["bert"])


def test_items_are_dealt_out_and_each_is_somebodys() -> None:
    shares = [Workers(rank, 3).share(range(7)) for rank in range(3)]
    assert shares == [[0, 3, 6], [1, 4], [2, 5]]
    assert [[n for n in range(7) if Workers(rank, 3).owns(n)] for rank in range(3)] == shares
    assert ALONE.joined(ALONE.share(range(7))) == list(range(7))


def test_batches_and_devices_that_cannot_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert join("cuda:1") is ALONE
    config = Options("m", "sst2", "o", train_batch_size=6)
    assert training_options(config, Workers(0, 3)).batch_size == 2
    with pytest.raises(UsageError, match=r"train_batch_size is 6 with 4 processes; give a multiple"):
        training_options(config, Workers(0, 4))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(UsageError, match=r"device is cuda:1 with 2 processes; use cpu, or cuda"):
        join("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="process 1 finds 1 GPUs; start at most 1"):
        join("cuda")

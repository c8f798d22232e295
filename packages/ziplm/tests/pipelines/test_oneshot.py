"""From a checkpoint and files to a family of checkpoints, whatever happens on the way."""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from latency_profiler import LatencyTable, ProfilerError
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from ziplm import Member, UnreachableTarget, UsageError, ZipLMError, compress
from ziplm.architectures.registry import architecture_of
from ziplm.stages.fisher import Fisher
from ziplm_compressed import LENGTH, options_for, without_times, write_files
from ziplm_models import HEADS, WIDTH
from ziplm_pipeline import linear_table
from ziplm_text import bare_tokenizer, letter_tokenizer


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def made(files: Path, family: str, tmp_path_factory: pytest.TempPathFactory) -> list[Member]:
    output = tmp_path_factory.mktemp("runs") / family
    return compress(**options_for(files, family, output, speedup=[3, 1.5]))


def sizes_of(model: Any) -> dict[str, list[int]]:
    modules = architecture_of(model).modules(model)
    return {kind: [m.groups for m in modules if m.kind == kind] for kind in ("attention", "ffn")}


def metric_by_hand(model: Any, files: Path) -> float:
    """Accuracy, or perplexity over windows, example by example."""
    model.eval()
    if model.can_generate():
        tokens = bare_tokenizer()((files / "valid.txt").read_text(), verbose=False)["input_ids"]
        total, count = 0.0, 0
        for start in range(0, len(tokens), LENGTH):
            window = torch.tensor([tokens[start : start + LENGTH]])
            if window.shape[1] > 1:
                logits = model(input_ids=window).logits[0, :-1].log_softmax(-1)
                total -= float(logits.gather(1, window[0, 1:, None]).sum().detach())
                count += window.shape[1] - 1
        return math.exp(total / count)
    tokenizer = letter_tokenizer()
    lines = [line.rsplit(",", 1) for line in (files / "valid.csv").read_text().splitlines()[1:]]
    right = [
        int(model(**tokenizer(text, return_tensors="pt")).logits.argmax()) == int(label)
        for text, label in lines
    ]
    return sum(right) / len(right)


def test_each_target_is_a_checkpoint_within_its_budget(
    files: Path, family: str, made: list[Member]
) -> None:
    assert [member.target for member in made] == ["1.5x", "3x"]
    table = LatencyTable.load(files / "latency.json")
    dense_seconds = table.predict({"attention": [HEADS] * 3, "ffn": [WIDTH] * 3})
    auto = AutoModelForSequenceClassification if family == "bert" else AutoModelForCausalLM
    for member, speedup in zip(made, (1.5, 3), strict=True):
        model = ziplm.load(member.folder)
        metrics = member.metrics
        sizes = sizes_of(model)
        assert metrics["sizes"] == sizes
        assert metrics["dense_sizes"] == {"attention": HEADS, "ffn": WIDTH}
        assert table.predict(sizes) <= dense_seconds / speedup
        assert metrics["predicted"]["seconds"] == pytest.approx(table.predict(sizes))
        assert metrics["predicted"]["speedup"] == pytest.approx(dense_seconds / table.predict(sizes))
        again = auto.from_pretrained(member.folder).eval()
        tokens = AutoTokenizer.from_pretrained(member.folder)("a b c d", return_tensors="pt")
        tokens = {name: tokens[name] for name in ("input_ids", "attention_mask")}
        torch.testing.assert_close(again(**tokens).logits, model(**tokens).logits)
    assert made[0].metrics["parameters"]["layers"] > made[1].metrics["parameters"]["layers"]


def test_metrics_are_those_of_the_model_in_the_folder(
    files: Path, family: str, made: list[Member]
) -> None:
    dense = ziplm.load(files / family)
    for member in made:
        metric = member.metrics["metric"]
        assert metric["name"] == ("accuracy" if family == "bert" else "perplexity")
        assert metric["dense"] == pytest.approx(metric_by_hand(dense, files), rel=1e-4)
        model = ziplm.load(member.folder)
        assert metric["compressed"] == pytest.approx(metric_by_hand(model, files), rel=1e-4)
        assert member.metrics["metrics"]["compressed"]["validation"][metric["name"]] == metric["compressed"]
        assert member.metrics["parameters"]["all"] == sum(p.numel() for p in model.parameters())
        assert member.metrics["dense_parameters"]["all"] == sum(p.numel() for p in dense.parameters())
        assert member.metrics["bytes_on_disk"] == (member.folder / "model.safetensors").stat().st_size


def test_the_report_says_all_that_is_needed_to_trust_it(made: list[Member]) -> None:
    for member in made:
        report = json.loads((member.folder / "metrics.json").read_text())
        assert report == member.metrics
        assert report["target"]["name"] == member.target
        assert report["measured"] is None  # the table was measured elsewhere: predicted only
        assert report["environment"]["threads"] >= 1
        assert set(report["versions"]) >= {"ziplm", "torch", "transformers", "python"}
        assert report["seed"] == 0
        assert isinstance(report["command"], str)
        assert set(report["seconds"]) >= {"calibrate", "prune", "search", "refit", "evaluate"}
        assert all(seconds >= 0 for seconds in report["seconds"].values())
        found = report["search"]
        assert found["prior"] in found["prior_losses"]
        assert set(found["prior_losses"]) == {"factored", "scalar", "stream"}
        assert found["evaluations"] <= 5 + 3
        assert report["divergence"] >= 0
        refit = report["refit"]
        assert min(refit["before"], refit["after"]) >= 0
        assert refit["after"] < refit["before"] or not refit["kept"]


def test_the_run_folder_holds_what_it_says(files: Path, made: list[Member]) -> None:
    folder = made[0].folder.parent
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.toml", "latency.json", "state", "1.5x", "3x"}
    assert LatencyTable.load(folder / "latency.json") == LatencyTable.load(files / "latency.json")
    forbidden = [path for path in folder.rglob("*") if path.suffix in (".pt", ".bin", ".pkl", ".npy")]
    assert not forbidden


def test_a_second_call_does_nothing_and_says_the_same(
    files: Path, family: str, made: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("nothing is left to do")

    folder = made[0].folder.parent
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix == ".safetensors"}
    monkeypatch.setattr("ziplm.loading.make_task", refuse)
    again = compress(**options_for(files, family, folder, speedup=[1.5, 3]))
    assert again == made
    assert compress(**options_for(files, family, folder, speedup=[3])) == made[1:]
    assert before == {path: path.stat().st_mtime_ns for path in before}


def copied(made: Sequence[Member], folder: Path, *without: str) -> Path:
    """A copy of a run that lacks some files."""
    run = folder / "run"
    shutil.copytree(made[0].folder.parent, run)
    for name in without:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return run


def test_another_target_uses_what_is_there(
    files: Path, family: str, made: list[Member], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("this was done before")

    run = copied(made, tmp_path)
    for name in ("gather_fisher", "gather_inputs", "prune_branch"):
        monkeypatch.setattr(f"ziplm.pipeline.{name}", refuse)
    monkeypatch.setattr("ziplm.loading.latency_table", refuse)
    (member,) = compress(**options_for(files, family, run, speedup=[2.5]))
    assert member.metrics["predicted"]["speedup"] >= 2.5
    assert compress(**options_for(files, family, run, speedup=[1.5]))[0].metrics == made[0].metrics


DAMAGED = [
    "state/metric.safetensors",
    "state/traces/layer1.ffn.safetensors",
    "state/priors/layer1.ffn.safetensors",
    "state/dense.json",
    "state/seconds.json",
    "state/targets/3x/search.json",
    "state/targets/3x/found.json",
    "state/targets/3x/fitted.json",
    "latency.json",
]


@pytest.mark.parametrize("family", ["bert"], indirect=True)
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named_and_can_be_deleted(
    files: Path, family: str, made: list[Member], tmp_path: Path, name: str
) -> None:
    """Deleted, as the message says, it is made again: to the same end."""
    lost = ["3x", "state/targets/3x/found.json"] if "search" in name else ["3x"]
    run = copied(made, tmp_path, *lost)
    options = options_for(files, family, run, speedup=[3])
    data = (run / name).read_bytes()
    (run / name).write_bytes(data[: len(data) // 2])
    with pytest.raises((ZipLMError, ProfilerError)) as caught:
        compress(**options)
    assert Path(name).name in str(caught.value)
    assert "\n" not in str(caught.value)
    (run / name).unlink()
    (again,) = compress(**options)
    assert without_times(again.metrics) == without_times(made[1].metrics)


def test_little_memory_takes_more_passes_to_the_same_end(
    files: Path, family: str, made: list[Member], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = 0
    gather = ziplm.pipeline.gather_inputs

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal passes
        passes += 1
        return gather(*args, **kwargs)

    monkeypatch.setattr("ziplm.pipeline.gather_inputs", counted)
    (member,) = compress(**options_for(files, family, tmp_path / "run", speedup=[3], memory_gb=1e-9))
    assert passes == 6
    assert without_times(member.metrics) == without_times(made[1].metrics)


def test_a_latency_in_milliseconds(files: Path, family: str, tmp_path: Path) -> None:
    (member,) = compress(
        **options_for(files, family, tmp_path / "run", latency_ms=[5], evaluations=0, refit=False)
    )
    assert member.target == "5ms"
    assert member.metrics["predicted"]["seconds"] <= 5e-3
    assert member.metrics["refit"] is None
    assert member.metrics["search"]["searched_loss"] is None


def test_recover_keeps_a_share_of_the_metric(files: Path, tmp_path: Path) -> None:
    """What is kept is looked up in the finished model, not in what the bisection saw."""
    (member,) = compress(**options_for(files, "gpt2", tmp_path / "run", recover=[0.9], evaluations=0))
    assert member.target == "recover0.9"
    metric = member.metrics["metric"]
    steps = json.loads((tmp_path / "run/state/targets/recover0.9/recover.json").read_text())
    assert steps["wanted"] == pytest.approx(metric["dense"] / 0.9)
    good = [step["speedup"] for step in steps["steps"] if step["metric"] <= steps["wanted"]]
    bad = [step["speedup"] for step in steps["steps"] if step["metric"] > steps["wanted"]]
    assert max(good, default=1.01) <= steps["speedup"] * (1 + 1e-9)
    assert not bad or not good or max(good) < min(bad)
    kept = metric["compressed"] <= steps["wanted"]
    assert member.metrics["recover"] == {"wanted": steps["wanted"], "kept": kept}
    assert kept or member.metrics["predicted"]["speedup"] < 1.3


def test_the_papers_configuration(files: Path, family: str, tmp_path: Path) -> None:
    options = options_for(files, family, tmp_path / "run", speedup=[2], method="ziplm", evaluations=6)
    (member,) = compress(**options)
    assert member.metrics["search"]["prior"] == "own"
    assert list(member.metrics["search"]["prior_losses"]) == ["own"]
    assert member.metrics["refit"] is None
    assert not (tmp_path / "run/state/metric.safetensors").exists()


def test_without_gradients_the_stream_prior_has_to_do(files: Path, tmp_path: Path) -> None:
    (member,) = compress(**options_for(files, "bert", tmp_path / "run", speedup=[2], gradients=False))
    assert list(member.metrics["search"]["prior_losses"]) == ["stream"]
    assert not (tmp_path / "run/state/metric.safetensors").exists()


def test_who_asks_for_few_samples_gets_few(files: Path, family: str, tmp_path: Path) -> None:
    """The least number is for data that must be shared out, not for what is asked for."""
    options = options_for(
        files, family, tmp_path / "run", speedup=[2], calibration_samples=4, search_samples=3
    )
    (member,) = compress(**options)
    assert member.metrics["predicted"]["speedup"] >= 2
    assert math.isfinite(member.metrics["divergence"])
    metric = Fisher.load(tmp_path / "run/state/metric.safetensors")
    assert len(metric.squares["layer0.ffn"]) <= 4 * LENGTH


def test_impossible_targets_fail_before_the_long_work(files: Path, family: str, tmp_path: Path) -> None:
    with pytest.raises(UnreachableTarget, match="target 6x cannot be reached: with everything removed"):
        compress(**options_for(files, family, tmp_path / "run", speedup=[2, 6]))
    assert not (tmp_path / "run/state/metric.safetensors").exists()
    assert not (tmp_path / "run/state/traces").exists()
    with pytest.raises(UsageError, match="target 90ms is slower than the dense model"):
        compress(**options_for(files, family, tmp_path / "run", latency_ms=[90]))


def test_a_prior_that_the_task_has_not(files: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="prior exact is not for task classification; it is for mean embeddings"
    ):
        compress(**options_for(files, "bert", tmp_path / "run", speedup=[2], prior="exact"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_file": "valid.csv"}, "there are 30 training examples; give at least 40 to calibrate on"),
        ({"latency_table": "nothing.json"}, "cannot read .*nothing.json"),
        (
            {"latency_table": "other.json"},
            "the latency table is of a model with 8 groups of attention, not 4",
        ),
        ({"model": "nothing"}, "nothing"),
        ({"model": "gpt2"}, "is a GPT2LMHeadModel, but task classification needs"),
    ],
)
def test_what_cannot_work_is_told_about(
    files: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    linear_table(heads=8).save(files / "other.json")
    absolute = {k: str(files / v) if isinstance(v, str) else v for k, v in change.items()}
    with pytest.raises((ZipLMError, ProfilerError), match=message) as caught:
        compress(**options_for(files, "bert", tmp_path / "run", speedup=[2], **absolute))
    assert "\n" not in str(caught.value)


def test_measured_here(files: Path, family: str, tmp_path: Path) -> None:
    options = options_for(files, family, tmp_path / "run", speedup=[1.1], evaluations=2)
    del options["latency_table"]
    options |= {
        "batch_size": 2,
        "clock": "cpu",
        "profile_seconds": 1.0,
        "measure_seconds": 0.3,
        "refit": False,
    }
    (member,) = compress(**options)
    measured = member.metrics["measured"]
    assert measured["low"] <= measured["speedup"] <= measured["high"]
    assert measured["speedup"] == pytest.approx(measured["dense_seconds"] / measured["seconds"], rel=0.3)
    assert 1 <= len(member.metrics["fit"]) <= 3
    environment = LatencyTable.load(tmp_path / "run/latency.json").environment
    assert (environment.threads, environment.batch_size, environment.clock) == (1, 2, "cpu")
    assert set(member.metrics["seconds"]) >= {"profile", "measure"}


def test_limits_beside_a_share_of_the_metric_are_looked_at_first(files: Path, tmp_path: Path) -> None:
    with pytest.raises(UnreachableTarget, match=r"recover0\.9-params1 cannot be reached"):
        compress(**options_for(files, "gpt2", tmp_path / "run", recover=[0.9], params=[1]))
    assert not (tmp_path / "run" / "state" / "traces").exists()

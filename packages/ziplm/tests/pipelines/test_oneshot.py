"""One-shot compression: from a checkpoint and files to a family of checkpoints, each with its report."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from latency_profiler import LatencyTable
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from ziplm import Family, compress
from ziplm.architectures.registry import architecture_of
from ziplm.stages.fisher import Fisher
from ziplm_compressed import LENGTH, options_for
from ziplm_models import HEADS, WIDTH
from ziplm_text import bare_tokenizer, letter_tokenizer


def sizes_of(model: Any) -> dict[str, list[int]]:
    branches = architecture_of(model).branches(model)
    return {kind: [b.groups for b in branches if b.kind == kind] for kind in ("attention", "ffn")}


def metric_by_hand(model: Any, files: Path) -> float:
    """Compute accuracy, or perplexity over windows, example by example."""
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


def test_each_target_is_a_checkpoint_within_its_budget(files: Path, architecture: str, made: Family) -> None:
    assert [member.target for member in made] == ["1.5x", "3x"]
    table = LatencyTable.load(files / "latency.json")
    dense_seconds = table.predict({"attention": [HEADS] * 3, "ffn": [WIDTH] * 3})
    auto = AutoModelForSequenceClassification if architecture == "bert" else AutoModelForCausalLM
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


def test_metrics_describe_the_model_in_the_folder(files: Path, architecture: str, made: Family) -> None:
    dense = ziplm.load(files / architecture)
    for member in made:
        metric = member.metrics["metric"]
        assert metric["name"] == ("accuracy" if architecture == "bert" else "perplexity")
        assert metric["dense"] == pytest.approx(metric_by_hand(dense, files), rel=1e-4)
        model = ziplm.load(member.folder)
        assert metric["compressed"] == pytest.approx(metric_by_hand(model, files), rel=1e-4)
        assert member.metrics["metrics"]["compressed"]["validation"][metric["name"]] == metric["compressed"]
        assert member.metrics["parameters"]["all"] == sum(p.numel() for p in model.parameters())
        assert member.metrics["dense_parameters"]["all"] == sum(p.numel() for p in dense.parameters())
        assert member.metrics["bytes_on_disk"] == (member.folder / "model.safetensors").stat().st_size


def test_the_report_tells_how_the_member_was_made(made: Family) -> None:
    for member in made:
        report = json.loads((member.folder / "metrics.json").read_text())
        assert report == member.metrics
        assert report["target"]["name"] == member.target
        assert report["measured"] is None  # with a table from elsewhere, nothing is measured
        assert report["environment"]["threads"] >= 1
        assert set(report["versions"]) >= {"ziplm", "torch", "transformers", "python"}
        assert report["seed"] == 0
        assert isinstance(report["command"], str)
        assert set(report["seconds"]) >= {"calibrate", "prune", "search", "refit", "evaluate"}
        assert all(seconds >= 0 for seconds in report["seconds"].values())
        assert list(report["cpu_seconds"]) == list(report["seconds"])
        found = report["search"]
        assert found["prior"] in found["prior_losses"]
        assert set(found["prior_losses"]) == {"factored", "scalar", "stream"}
        assert found["evaluations"] <= 5 + 3
        assert report["divergence"] >= 0
        refit = report["refit"]
        assert min(refit["before"], refit["after"]) >= 0
        assert refit["after"] < refit["before"] or not refit["kept"]


def test_the_run_folder_holds_only_documented_files(files: Path, made: Family) -> None:
    folder = made[0].folder.parent
    names = {path.name for path in folder.iterdir()}
    documented = {"ziplm-run.json", "config.toml", "fingerprints.json", "run.log", "latency.json", "state"}
    assert names == {*documented, "1.5x", "3x"}
    assert LatencyTable.load(folder / "latency.json") == LatencyTable.load(files / "latency.json")
    forbidden = [path for path in folder.rglob("*") if path.suffix in (".pt", ".bin", ".pkl", ".npy")]
    assert not forbidden


def test_a_target_may_be_a_latency_in_milliseconds(files: Path, architecture: str, tmp_path: Path) -> None:
    (member,) = compress(
        **options_for(files, architecture, tmp_path / "run", latency_ms=[5], evaluations=0, refit=False)
    )
    assert member.target == "5ms"
    assert member.metrics["predicted"]["seconds"] <= 5e-3
    assert member.metrics["refit"] is None
    assert member.metrics["search"]["searched_loss"] is None


def test_the_configuration_of_the_paper_uses_neither_gradients_nor_refit(
    files: Path, architecture: str, tmp_path: Path
) -> None:
    options = options_for(files, architecture, tmp_path / "run", speedup=[2], method="ziplm", evaluations=6)
    (member,) = compress(**options)
    assert member.metrics["search"]["prior"] == "own"
    assert list(member.metrics["search"]["prior_losses"]) == ["own"]
    assert member.metrics["refit"] is None
    assert not (tmp_path / "run/state/fisher.safetensors").exists()


def test_without_gradients_only_the_stream_prior_is_tried(files: Path, tmp_path: Path) -> None:
    (member,) = compress(**options_for(files, "bert", tmp_path / "run", speedup=[2], gradients=False))
    assert list(member.metrics["search"]["prior_losses"]) == ["stream"]
    assert not (tmp_path / "run/state/fisher.safetensors").exists()


def test_fewer_samples_than_the_minimum_may_be_asked_for(
    files: Path, architecture: str, tmp_path: Path
) -> None:
    """The minimum applies only if there are too few examples for all parts."""
    options = options_for(
        files, architecture, tmp_path / "run", speedup=[2], calibration_samples=4, search_samples=3
    )
    (member,) = compress(**options)
    assert member.metrics["predicted"]["speedup"] >= 2
    assert math.isfinite(member.metrics["divergence"])
    fisher = Fisher.load(tmp_path / "run/state/fisher.safetensors")
    assert len(fisher.squares["layer0.ffn"]) <= 4 * LENGTH


def test_without_a_table_the_members_are_measured(files: Path, architecture: str, tmp_path: Path) -> None:
    options = options_for(files, architecture, tmp_path / "run", speedup=[1.1], evaluations=2)
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
    assert 1 <= len(member.metrics["fit"]) <= 4  # three corrections at most, and what the last one led to
    environment = LatencyTable.load(tmp_path / "run/latency.json").environment
    assert (environment.threads, environment.batch_size, environment.clock) == (1, 2, "cpu")
    assert set(member.metrics["seconds"]) >= {"profile", "measure"}

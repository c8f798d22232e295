"""Latency is measured at the lengths of the data, unless lengths are given, with one clock per run."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import ziplm
from latency_profiler import LatencyTable
from ziplm import Family
from ziplm.stages.clock import Probe
from ziplm_clock import count_products
from ziplm_compressed import Recorder, options_for, words

CALIBRATION = 40


def measured(files: Path, output: Path, recorder: Recorder | None = None, **more: Any) -> Family:
    """Run with counted products for seconds; no latency table is given."""
    options = options_for(files, "bert", output, speedup=[1.5], clock="cpu", attention="eager")
    options |= {"profile_seconds": 1e-3, "measure_seconds": 1e-3, "evaluations": 1, "refit": False}
    del options["latency_table"], options["input_length"]
    return ziplm.compress(**{**options, **more}, progress=recorder or False)


def percentiles(lengths: list[int]) -> list[int]:
    return [round(float(length)) for length in np.percentile(lengths, [10, 50, 90])]


def usual_lengths(seed: int) -> list[int]:
    """Return the numbers of tokens of random texts: their letters, [CLS] and [SEP]."""
    texts = words(80, 0)
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
    return [len(texts[index].split()) + 2 for index in order[:CALIBRATION]]


@pytest.mark.parametrize("seed", [0, 5])
def test_latency_is_measured_at_three_percentiles_of_the_training_data(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    count_products(monkeypatch)
    recorder = Recorder()
    (member,) = measured(files, tmp_path / "run", recorder, regime="latency", seed=seed)
    chosen = percentiles(usual_lengths(seed))
    assert len(set(chosen)) > 1
    note = f"measuring inputs of {', '.join(map(str, chosen))} tokens: 10th, 50th and 90th percentile of the"
    assert [text for text in recorder.notes if text.startswith(note)] == [f"{note} training data"]
    details = LatencyTable.load(tmp_path / "run" / "latency.json").environment.details
    assert details["input lengths"] == " ".join(map(str, chosen))
    assert member.metrics["environment"]["details"]["input lengths"] == " ".join(map(str, chosen))


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        ({"regime": "latency", "input_length": [9, 4]}, "4 9"),
        ({"regime": "latency", "input_length": 6}, "6"),
        ({"regime": "throughput", "input_length": 6}, None),
    ],
)
def test_lengths_that_are_given_and_throughput_do_not_depend_on_the_data(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], lengths: str | None
) -> None:
    count_products(monkeypatch)
    recorder = Recorder()
    (member,) = measured(files, tmp_path / "run", recorder, **given)
    environment = member.metrics["environment"]
    assert environment["details"].get("input lengths") == lengths
    assert environment["sequence_length"] == (6 if lengths is None else None)
    assert not any("percentile" in note for note in recorder.notes)
    reached = sum(length >= 6 for length in usual_lengths(0))
    assert reached > 0
    cut = f"examples are cut to 6 tokens, which {reached} of {CALIBRATION} training examples reach; "
    assert any(note.startswith(cut) for note in recorder.notes) == (lengths is None)


def test_examples_that_are_cut_on_purpose_are_not_noted(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_products(monkeypatch)
    recorder = Recorder()
    measured(files, tmp_path / "run", recorder, regime="throughput", input_length=6, max_length=6)
    assert not any("are cut" in note for note in recorder.notes)


BUSY = Probe(waiting=1.5, load=9.0, cores=2)


def probe_as(monkeypatch: pytest.MonkeyPatch, probe: Probe | None) -> None:
    def result() -> Probe:
        assert probe is not None, "a resumed run must not probe"
        return probe

    monkeypatch.setattr("ziplm.pipelines.loading.probe_machine", result)


def test_a_resumed_run_keeps_the_clock_of_its_latency_table(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that began on a busy machine and goes on when it is quiet compares like with like."""
    count_products(monkeypatch)
    probe_as(monkeypatch, BUSY)
    first, second = Recorder(), Recorder()
    measured(files, tmp_path / "run", first, clock="auto", input_length=6)
    assert f"clock: CPU time, since the machine is busy ({BUSY})" in first.notes
    assert LatencyTable.load(tmp_path / "run" / "latency.json").environment.clock == "cpu"

    shutil.rmtree(tmp_path / "run" / "1.5x")
    probe_as(monkeypatch, None)
    (member,) = measured(files, tmp_path / "run", second, clock="auto", input_length=6)
    assert member.metrics["environment"]["clock"] == "cpu"
    assert not any(note.startswith("clock:") for note in second.notes)
    report = json.loads((member.folder / "metrics.json").read_text())
    assert report["measured"]["speedup"] >= 1.5

"""Stored traces are read from their files when they are needed, one at a time."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from ziplm import BadRun, UsageError, shrink
from ziplm.architectures.registry import architecture_of
from ziplm.stages.traces import InOrder, StoredTraces, TraceFiles
from ziplm_models import make_traces, outputs_of, removed_by, tiny_model, tokens_for

NAME = "BertForSequenceClassification"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TraceFiles]:
    folder = tmp_path_factory.mktemp("traces")
    model = tiny_model(NAME)
    made = {}
    for branch, trace in zip(architecture_of(model).branches(model), make_traces(model), strict=True):
        assert trace is not None
        made[branch.name] = TraceFiles(folder / f"{branch.name}.safetensors")
        made[branch.name].save(trace)
    return made


@pytest.mark.parametrize("pattern", ["nothing", "heads and columns", "a whole layer", "everything"])
def test_shrinking_with_stored_traces_equals_shrinking_with_traces_in_memory(
    files: dict[str, TraceFiles], pattern: str
) -> None:
    model = tiny_model(NAME)
    removed, batch = removed_by(model, pattern), tokens_for(NAME)
    names = [branch.name for branch in architecture_of(model).branches(model)]
    small = shrink(model, removed, InOrder(StoredTraces(files), names))
    expected = outputs_of(shrink(model, removed, make_traces(model)), batch)
    torch.testing.assert_close(outputs_of(small, batch), expected)


def test_only_one_trace_is_in_memory_at_a_time(files: dict[str, TraceFiles]) -> None:
    traces = StoredTraces(files)
    assert list(traces) == list(files)
    assert len(traces) == 6
    first = traces["layer0.ffn"]
    assert traces["layer0.ffn"] is first
    seen = weakref.ref(first)
    del first
    assert traces["layer1.ffn"].groups == 24
    gc.collect()
    assert seen() is None


def test_traces_of_unchanged_branches_are_not_read(files: dict[str, TraceFiles], tmp_path: Path) -> None:
    """A branch that loses nothing needs no trace, so its file may be damaged or missing."""
    model = tiny_model(NAME)
    branches = architecture_of(model).branches(model)
    (tmp_path / "damaged").write_bytes(files["layer1.ffn"].heads.read_bytes()[:100])
    others = {
        "layer1.ffn": TraceFiles(tmp_path / "damaged"),
        "layer2.ffn": TraceFiles(tmp_path / "missing"),
    }
    traces = StoredTraces({**files, **others})
    assert "layer1.ffn" in traces
    in_order = InOrder(traces, [branch.name for branch in branches])
    shrink(model, [1, 1, 1, 0, 1, 0], in_order)
    with pytest.raises(BadRun, match=r"damaged is not a trace.*delete that file"):
        shrink(model, [0, 0, 0, 1, 0, 0], in_order)
    with pytest.raises(BadRun, match=r"missing.*delete that file"):
        shrink(model, [0, 0, 0, 0, 0, 1], in_order)


def test_a_branch_without_a_file_has_no_trace(files: dict[str, TraceFiles]) -> None:
    in_order = InOrder(StoredTraces({"layer0.ffn": files["layer0.ffn"]}), list(files))
    assert len(in_order) == 6
    assert [trace is None for trace in in_order] == [True, False, True, True, True, True]
    assert len(in_order[:2]) == 2
    model = tiny_model(NAME)
    with pytest.raises(
        UsageError, match=r"layer1.ffn has no trace; prune its matrix, or remove nothing from it"
    ):
        shrink(model, [0, 1, 0, 1, 0, 0], in_order)

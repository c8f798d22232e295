"""Traces that stay in their files until they are needed."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from ziplm import BadRun, UsageError, shrink
from ziplm.architectures.registry import architecture_of
from ziplm.stages.traces import InOrder, StoredTraces
from ziplm_models import removed_by, make_traces, outputs_of, tiny_model, tokens_for

NAME = "BertForSequenceClassification"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("traces")
    model = tiny_model(NAME)
    made = {}
    for module, trace in zip(architecture_of(model).modules(model), make_traces(model), strict=True):
        assert trace is not None
        made[module.name] = folder / f"{module.name}.safetensors"
        trace.save(made[module.name])
    return made


@pytest.mark.parametrize("pattern", ["nothing", "heads and columns", "a whole layer", "everything"])
def test_a_model_shrinks_as_with_all_of_them_in_memory(files: dict[str, Path], pattern: str) -> None:
    model = tiny_model(NAME)
    levels, batch = removed_by(model, pattern), tokens_for(NAME)
    names = [module.name for module in architecture_of(model).modules(model)]
    small = shrink(model, levels, InOrder(StoredTraces(files), names))
    expected = outputs_of(shrink(model, levels, make_traces(model)), batch)
    torch.testing.assert_close(outputs_of(small, batch), expected)


def test_one_is_in_memory_at_a_time(files: dict[str, Path]) -> None:
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


def test_only_what_is_needed_is_read(files: dict[str, Path], tmp_path: Path) -> None:
    """A level of 0 needs no trace: neither a damaged file nor one that is missing is looked at."""
    model = tiny_model(NAME)
    modules = architecture_of(model).modules(model)
    (tmp_path / "damaged").write_bytes(files["layer1.ffn"].read_bytes()[:100])
    traces = StoredTraces({**files, "layer1.ffn": tmp_path / "damaged", "layer2.ffn": tmp_path / "missing"})
    assert "layer1.ffn" in traces
    in_order = InOrder(traces, [module.name for module in modules])
    shrink(model, [1, 1, 1, 0, 1, 0], in_order)
    with pytest.raises(BadRun, match=r"damaged is not a trace.*delete that file"):
        shrink(model, [0, 0, 0, 1, 0, 0], in_order)
    with pytest.raises(BadRun, match=r"missing.*delete that file"):
        shrink(model, [0, 0, 0, 0, 0, 1], in_order)


def test_modules_without_a_trace_have_none(files: dict[str, Path]) -> None:
    in_order = InOrder(StoredTraces({"layer0.ffn": files["layer0.ffn"]}), list(files))
    assert len(in_order) == 6
    assert [trace is None for trace in in_order] == [True, False, True, True, True, True]
    assert len(in_order[:2]) == 2
    model = tiny_model(NAME)
    with pytest.raises(UsageError, match=r"layer1.ffn has no trace; prune its matrix, or give it level 0"):
        shrink(model, [0, 1, 0, 1, 0, 0], in_order)

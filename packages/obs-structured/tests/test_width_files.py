"""Damaged files of width traces and score traces are refused, before anything is computed from them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from obs_attention import attention_case, random_metric
from obs_structured import ScoreTrace, Trace, WidthTrace, narrow_heads, narrow_scores


def save_widths(path: Path) -> None:
    attention = attention_case(0, heads=2, size=3, hidden=8).attention
    hessian = torch.eye(6) + 0.3
    narrow_heads(attention.output, hessian, 3, mean=torch.full((6,), 0.1), metric=random_metric(8, 0)).save(
        path
    )


def save_scores(path: Path) -> None:
    moments = torch.diag_embed(torch.tensor([[3.0, 2.0, 1.0], [1.0, 5.0, 2.0]]))
    narrow_scores(moments, moments).save(path)


def replace_content(path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, Any]], object]) -> None:
    """Write the file again with changed tensors and scalars."""
    with safetensors.safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    scalars = json.loads(metadata["scalars"])
    change(tensors, scalars)
    safetensors.torch.save_file(tensors, path, {**metadata, "scalars": json.dumps(scalars)})


DAMAGE: dict[str, tuple[str, object]] = {
    "no basis": ("basis", None),
    "flat basis": ("basis", torch.zeros(18).double()),
    "skewed basis": ("basis", torch.ones(2, 3, 3).double()),
    "basis of other heads": ("basis", torch.eye(2).double().repeat(2, 1, 1)),
    "oblong basis": ("basis", torch.ones(2, 3, 2).double()),
    "nan output": ("output", torch.full((8, 6), torch.nan).double()),
    "empty output": ("output", torch.ones(0, 6).double()),
    "float32 output": ("output", torch.ones(8, 6)),
    "short triangle": ("triangle", torch.ones(20).double()),
    "short mean": ("mean", torch.ones(5).double()),
    "oblong metric": ("metric", torch.ones(8, 7).double()),
    "short metric": ("metric", torch.ones(7).double()),
    "unknown tensor": ("surprise", torch.ones(1)),
    "zero scale": ("scale", 0),
    "nan unit": ("unit", float("nan")),
    "negative damping": ("absolute_damping", -1.0),
    "dtype": ("dtype", "int8"),
    "missing scalar": ("scale", None),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_width_traces_are_refused(tmp_path: Path, damage: str) -> None:
    name, value = DAMAGE[damage]

    def change(tensors: dict[str, torch.Tensor], scalars: dict[str, Any]) -> None:
        target: dict[str, Any] = scalars if name in scalars else tensors
        if value is None:
            del target[name]
        else:
            target[name] = value

    save_widths(tmp_path / "heads")
    assert WidthTrace.load(tmp_path / "heads").heads == 2
    replace_content(tmp_path / "heads", change)
    with pytest.raises(ValueError, match="is a damaged width trace: ") as caught:
        WidthTrace.load(tmp_path / "heads")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("query", torch.ones(2, 3, 4).double()),
        ("query", torch.ones(3, 3).double()),
        ("key", torch.ones(2, 4, 4).double()),
        ("key", torch.full((2, 3, 3), torch.inf).double()),
        ("errors", torch.ones(2, 3).double()),
        ("errors", -torch.ones(2, 4).double()),
    ],
)
def test_damaged_score_traces_are_refused(tmp_path: Path, name: str, value: torch.Tensor) -> None:
    save_scores(tmp_path / "scores")
    assert ScoreTrace.load(tmp_path / "scores").heads == 2
    replace_content(tmp_path / "scores", lambda tensors, _: tensors.update({name: value}))
    with pytest.raises(ValueError, match="is a damaged score trace: "):
        ScoreTrace.load(tmp_path / "scores")


@pytest.mark.parametrize("load", [Trace.load, ScoreTrace.load])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, load: Callable[[Path], object]) -> None:
    save_widths(tmp_path / "heads")
    with pytest.raises(
        ValueError, match=r"heads is not a .*trace: its format is 'obs-structured width trace 1'"
    ):
        load(tmp_path / "heads")


@settings(max_examples=80)
@given(
    st.sampled_from([(save_widths, WidthTrace), (save_scores, ScoreTrace)]),
    st.floats(0, 1),
    st.integers(1, 255),
)
def test_changed_bytes_give_a_trace_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, kind: tuple[Any, Any], position: float, mask: int
) -> None:
    save, trace = kind
    path = tmp_path_factory.mktemp("fuzz") / "trace"
    save(path)
    content = bytearray(path.read_bytes())
    content[int(position * (len(content) - 1))] ^= mask
    path.write_bytes(content)
    try:
        loaded = trace.load(path)
        errors = loaded.errors(1)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert errors.ndim == 1

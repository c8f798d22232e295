"""A compressed checkpoint can be compressed again, measured by itself or by its dense model's table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import ziplm
from latency_profiler import LatencyTable
from ziplm import UsageError
from ziplm.architectures.registry import architecture_of
from ziplm_clock import count_products
from ziplm_compressed import options_for
from ziplm_models import HEADS, WIDTH

FEWER = (1, 5) * 3


def smaller(folder: Path, files: Path, architecture: str, removed: Sequence[int] = FEWER) -> Path:
    """Return a checkpoint from which so many groups are removed, by default some of each branch."""
    dense = ziplm.load(files / architecture)
    from ziplm_models import make_traces

    model = ziplm.shrink(dense, removed, make_traces(dense))
    tokenizer = ziplm.tasks.make_task("causal-lm").load_tokenizer(str(files / architecture))
    ziplm.save(model, folder, tokenizer)
    return folder


def again(
    files: Path, architecture: str, folder: Path, removed: Sequence[int] = FEWER, **more: Any
) -> ziplm.Member:
    options = options_for(files, architecture, folder / "run", speedup=[1.3], **more)
    options["model"] = str(smaller(folder / "small", files, architecture, removed))
    (member,) = ziplm.compress(**{name: value for name, value in options.items() if value is not None})
    return member


def test_the_sizes_that_it_has_are_measured(
    files: Path, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_products(monkeypatch)
    measured = {"latency_table": None, "clock": "cpu", "attention": "eager", "profile_seconds": 1e-3}
    member = again(files, architecture, tmp_path, **measured, measure_seconds=1e-3)
    assert (
        member.metrics["measured"]["speedup"] >= 1.3
    )  # over the compressed model, which is the dense one here
    table = LatencyTable.load(tmp_path / "run" / "latency.json")
    assert {kind: max(curve.sizes) for kind, curve in table.curves.items()} == {
        "attention": HEADS - 1,
        "ffn": WIDTH - 5,
    }


def test_the_table_of_its_dense_model_will_do(files: Path, architecture: str, tmp_path: Path) -> None:
    assert again(files, architecture, tmp_path).metrics["predicted"]["speedup"] >= 1.3


def test_a_branch_that_was_removed_stays_removed(files: Path, tmp_path: Path) -> None:
    member = again(files, "bert", tmp_path, (HEADS, 5, 1, WIDTH, 1, 5), calibration_samples=None)
    model = ziplm.load(member.folder)
    left = [branch.groups for branch in architecture_of(model).branches(model)]
    assert (left[0], left[3]) == (0, 0)
    assert member.metrics["predicted"]["speedup"] >= 1.3


def test_a_table_that_lacks_its_sizes_is_refused(files: Path, tmp_path: Path) -> None:
    table = LatencyTable.load(files / "latency.json")
    from latency_profiler import LatencyCurve

    curves = {
        kind: LatencyCurve(curve.sizes[-3:], curve.seconds[-3:]) for kind, curve in table.curves.items()
    }
    LatencyTable(table.environment, table.fixed, curves).save(tmp_path / "few.json")
    with pytest.raises(UsageError, match="latency table was measured on a model with"):
        again(files, "bert", tmp_path, latency_table=str(tmp_path / "few.json"))

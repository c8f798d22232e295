"""A compressed checkpoint can be compressed again, measured by itself or by its dense model's table."""

from pathlib import Path
from typing import Any

import pytest
import ziplm
from latency_profiler import LatencyTable
from ziplm import UsageError
from ziplm_clock import count_products
from ziplm_compressed import options_for
from ziplm_models import HEADS, WIDTH


def smaller(folder: Path, files: Path, architecture: str) -> Path:
    """Return a checkpoint without a branch of full size."""
    dense = ziplm.load(files / architecture)
    from ziplm_models import make_traces

    model = ziplm.shrink(dense, [1, 5] * 3, make_traces(dense))
    tokenizer = ziplm.tasks.make_task("causal-lm").load_tokenizer(str(files / architecture))
    ziplm.save(model, folder, tokenizer)
    return folder


def again(files: Path, architecture: str, folder: Path, **more: Any) -> ziplm.Member:
    options = options_for(files, architecture, folder / "run", speedup=[1.3], **more)
    options["model"] = str(smaller(folder / "small", files, architecture))
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


def test_a_table_that_lacks_its_sizes_is_refused(files: Path, tmp_path: Path) -> None:
    table = LatencyTable.load(files / "latency.json")
    from latency_profiler import LatencyCurve

    curves = {
        kind: LatencyCurve(curve.sizes[-3:], curve.seconds[-3:]) for kind, curve in table.curves.items()
    }
    LatencyTable(table.environment, table.fixed, curves).save(tmp_path / "few.json")
    with pytest.raises(UsageError, match="latency table was measured on a model with"):
        again(files, "bert", tmp_path, latency_table=str(tmp_path / "few.json"))

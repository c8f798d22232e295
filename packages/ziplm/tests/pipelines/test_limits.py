"""Runs keep their limits: multiples of a width, FLOPs, bytes, uniform sizes and measured milliseconds."""

from pathlib import Path
from typing import Any

import pytest
import ziplm
from latency_profiler import LatencyCurve, LatencyTable
from transformers import PreTrainedModel
from ziplm import Member, compress
from ziplm.architectures.registry import architecture_of
from ziplm.pipelines import common_steps
from ziplm.stages.levels import size_grid
from ziplm_clock import count_products
from ziplm_compressed import LENGTH, options_for
from ziplm_models import HEADS, HIDDEN, LAYERS, WIDTH, make_traces, sizes_of

HEAD = HIDDEN // HEADS
BATCH = 8  # the default for throughput


def made_with(files: Path, architecture: str, output: Path, **options: Any) -> Member:
    """Compress to a single target by the solution of a prior, without a search."""
    given = options_for(files, architecture, output, search="prior", refit=False, **options)
    (member,) = compress(**given)
    return member


def test_widths_are_multiples_of_round_to_and_heads_are_not(
    files: Path, architecture: str, tmp_path: Path
) -> None:
    sizes = {}
    for round_to in (8, 1):
        output = tmp_path / str(round_to)
        member = made_with(files, architecture, output, speedup=[1.7], round_to=round_to)
        sizes[round_to] = sizes_of(ziplm.load(member.folder))
        assert member.metrics["predicted"]["speedup"] >= 1.7
    assert all(width % 8 == 0 for width in sizes[8]["ffn"])
    assert sizes[8]["ffn"] != [WIDTH] * LAYERS
    assert any(heads % 8 for heads in sizes[8]["attention"])
    assert any(width % 8 for width in sizes[1]["ffn"])  # control


def with_sizes(dense: PreTrainedModel, sizes: dict[str, list[int]]) -> PreTrainedModel:
    """Return a model of these sizes; its weights do not matter."""
    branches = architecture_of(dense).branches(dense)
    removed = [branch.groups - sizes[branch.kind][branch.layer] for branch in branches]
    return ziplm.shrink(dense, removed, make_traces(dense))


def bytes_of(model: PreTrainedModel) -> int:
    """Count the bytes of the layers' parameters."""
    layers = architecture_of(model).layers(model)
    return sum(p.numel() * p.element_size() for layer in layers for p in layer.parameters())


def flops_of(model: PreTrainedModel) -> int:
    """Count two operations for each weight and bias of a token's groups, and attention between tokens."""
    tokens, sizes = BATCH * LENGTH, sizes_of(model)
    heads, width = sum(sizes["attention"]), sum(sizes["ffn"])
    attention = 2 * tokens * heads * HEAD * (4 * HIDDEN + 3) + 4 * tokens * LENGTH * heads * HEAD
    return attention + 2 * tokens * width * (2 * HIDDEN + 1)


def one_level_larger(sizes: dict[str, list[int]]) -> list[dict[str, list[int]]]:
    """Return all sizes in which a single branch has the next larger size."""
    larger = []
    for kind, dense in (("attention", HEADS), ("ffn", WIDTH)):
        grid = size_grid(kind, dense)  # type: ignore[arg-type]
        for layer, size in enumerate(sizes[kind]):
            if size < dense:
                row = list(sizes[kind])
                row[layer] = grid[grid.index(size) - 1]
                larger.append({**sizes, kind: row})
    return larger


@pytest.mark.parametrize(("limit", "count"), [("bytes", bytes_of), ("flops", flops_of)])
def test_the_largest_model_within_a_limit_is_made(
    files: Path, architecture: str, tmp_path: Path, limit: str, count: Any
) -> None:
    dense = ziplm.load(files / architecture)
    allowed = 0.55 * count(dense)
    member = made_with(files, architecture, tmp_path / "run", **{limit: [allowed]})
    model = ziplm.load(member.folder)
    assert member.target == f"{limit}{allowed:g}"
    assert count(model) <= allowed
    larger = one_level_larger(sizes_of(model))
    assert len(larger) >= 3
    assert all(count(with_sizes(dense, sizes)) > allowed for sizes in larger)  # control: the limit binds


def test_a_limit_of_bytes_is_for_the_measured_dtype(files: Path, tmp_path: Path) -> None:
    """In bfloat16 the dense model has half the bytes, and meets a limit that halves it in float32."""
    dense = ziplm.load(files / "bert")
    options = {"bytes": [bytes_of(dense) / 2]}
    full = made_with(files, "bert", tmp_path / "full", **options)
    half = made_with(files, "bert", tmp_path / "half", dtype="bfloat16", **options)
    assert sizes_of(ziplm.load(half.folder)) == {"attention": [HEADS] * LAYERS, "ffn": [WIDTH] * LAYERS}
    assert sizes_of(ziplm.load(full.folder)) != sizes_of(ziplm.load(half.folder))


def test_a_limit_applies_to_every_speedup(files: Path, tmp_path: Path) -> None:
    dense = ziplm.load(files / "bert")
    alone = made_with(files, "bert", tmp_path / "alone", speedup=[1.2])
    assert bytes_of(ziplm.load(alone.folder)) > 0.5 * bytes_of(dense)  # control
    both = made_with(files, "bert", tmp_path / "both", speedup=[1.2], bytes=[0.5 * bytes_of(dense)])
    assert bytes_of(ziplm.load(both.folder)) <= 0.5 * bytes_of(dense)
    assert both.metrics["predicted"]["speedup"] >= 1.2


MEASURED = {"clock": "cpu", "threads": 1, "batch_size": 2, "latency_table": None, "profile_seconds": 0.001}


@pytest.fixture
def faster_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock counts multiplications; the table claims that everything takes a quarter less."""
    count_products(monkeypatch)
    measured_table = common_steps.latency_table

    def claimed(*args: Any, **options: Any) -> LatencyTable:
        table = measured_table(*args, **options)
        curves = {
            kind: LatencyCurve(curve.sizes, tuple(0.75 * seconds for seconds in curve.seconds))
            for kind, curve in table.curves.items()
        }
        return LatencyTable(table.environment, 0.75 * table.fixed, curves)

    monkeypatch.setattr(common_steps, "latency_table", claimed)


@pytest.mark.parametrize("uniform", [False, True])
def test_a_measured_latency_is_kept_and_a_speedup_is_not_corrected(
    files: Path, tmp_path: Path, faster_table: None, uniform: bool
) -> None:
    options = {**MEASURED, "measure_seconds": 0.001, "uniform": uniform}
    by_speedup = made_with(files, "bert", tmp_path / "speedup", speedup=[1.7], **options)
    predicted, measured = by_speedup.metrics["predicted"], by_speedup.metrics["measured"]
    assert measured["seconds"] == pytest.approx(predicted["seconds"] / 0.75, rel=1e-6)
    assert measured["speedup"] >= 1.7
    wanted = predicted["seconds"] * 1.001
    by_latency = made_with(files, "bert", tmp_path / "latency", latency_ms=[1e3 * wanted], **options)
    assert by_latency.metrics["measured"]["seconds"] <= wanted
    assert measured["seconds"] > wanted  # control: the model whose prediction meets it does not
    assert by_latency.metrics["parameters"]["layers"] < by_speedup.metrics["parameters"]["layers"]
    for member in (by_speedup, by_latency):
        sizes = sizes_of(ziplm.load(member.folder))
        assert all(len(set(row)) == 1 for row in sizes.values()) == uniform

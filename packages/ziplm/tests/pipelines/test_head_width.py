"""Runs in which heads become narrower: one-shot, gradual, pooled outputs, two processes, and switched off."""

from pathlib import Path
from typing import Any

import pytest
import torch
import ziplm
from latency_profiler import LatencyCurve, LatencyTable
from obs_structured import WidthTrace
from safetensors.torch import load_file, save_file
from ziplm.architectures.base import Size
from ziplm.architectures.registry import architecture_of
from ziplm.options.options import Options
from ziplm.options.toml import load_options, save_options
from ziplm.pipelines.common_steps import calibrate, prune
from ziplm.pipelines.loading import load_start
from ziplm.pipelines.prior_steps import gather_priors
from ziplm.runs.folder import Run
from ziplm.stages.levels import seconds_of
from ziplm_gradual import gradual_options
from ziplm_pipeline import CLASSIFIER, DECODER, linear_table, lively_model
from ziplm_several import notes_in, run_together
from ziplm_shared import shared_options, write_shared_files
from ziplm_text import bare_tokenizer, letter_tokenizer

HEADS, HEAD = 2, 24  # 24 is the smallest width that can become narrower: to 16


def table_with_widths() -> LatencyTable:
    """Return a table in which narrower heads take a little longer than their share of the width."""
    table = linear_table(heads=HEADS)
    curve = table.curves["attention"]
    narrow = LatencyCurve((2, 1), tuple(0.7 * curve(heads) for heads in (2, 1)))
    return LatencyTable(table.environment, table.fixed, {**table.curves, "attention@16": narrow})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_shared_files(tmp_path_factory.mktemp("files"))
    settings = {"hidden_size": HEADS * HEAD, "num_attention_heads": HEADS}
    ziplm.save(lively_model(CLASSIFIER, **settings), folder / "bert", letter_tokenizer())
    settings = {"n_embd": HEADS * HEAD, "n_head": HEADS}
    ziplm.save(lively_model(DECODER, **settings), folder / "gpt2", bare_tokenizer())
    table_with_widths().save(folder / "latency.json")
    return folder


def attention_sizes(folder: Path) -> list[Size]:
    model = ziplm.load(folder)
    return [branch.size for branch in architecture_of(model).branches(model) if branch.part == "attention"]


def narrower(sizes: list[Size]) -> int:
    return sum(size.width < HEAD and size.groups > 0 for size in sizes)


@pytest.fixture(scope="module")
def runs(files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ziplm.Family]:
    folder = tmp_path_factory.mktemp("runs")
    more: dict[str, Any] = {"speedup": [1.3, 1.6, 2.5], "search": "prior", "prior": "factored"}
    made = {
        name: ziplm.compress(**shared_options(files, name, folder / name, **more))
        for name in ("bert", "gpt2")
    }
    embedding = shared_options(files, "embedding", folder / "embedding", speedup=[1.6])
    return {**made, "embedding": ziplm.compress(**embedding)}


@pytest.mark.parametrize("name", ["bert", "gpt2", "embedding"])
def test_members_have_narrower_heads_within_their_budget(runs: dict[str, ziplm.Family], name: str) -> None:
    table = table_with_widths()
    dense = table.predict({"attention": [HEADS] * 3, "ffn": [24] * 3})
    counts = []
    for member in runs[name]:
        sizes = attention_sizes(member.folder)
        widths = ziplm.inspect(member.folder).widths
        seconds = table.fixed + sum(seconds_of(table, "attention", size, HEAD) for size in sizes)
        seconds += sum(table.curves["ffn"](width) for width in widths)
        assert seconds <= dense / float(member.target.removesuffix("x")) * (1 + 1e-9)
        assert member.metrics["predicted"]["seconds"] == pytest.approx(seconds)
        assert [size[0] for size in member.sizes["attention"]] == [size.groups for size in sizes]
        kept = [size[1] for size in member.sizes["attention"] if size[0]]
        assert kept == [size.width for size in sizes if size.groups]
        assert member.metrics["dense_sizes"] == {"attention": [HEADS, HEAD], "ffn": 24}
        assert (member.folder / "README.md").read_text().count(f" of {HEADS}×{HEAD}") == len(kept)
        counts.append(narrower(sizes))
    assert max(counts) > 0


def test_without_head_width_heads_are_only_removed(
    files: Path, runs: dict[str, ziplm.Family], tmp_path: Path
) -> None:
    more: dict[str, Any] = {"search": "prior", "prior": "factored", "head_width": False}
    options = shared_options(files, "bert", tmp_path / "run", speedup=[1.6], **more)
    (member,) = ziplm.compress(**options)
    assert narrower(attention_sizes(member.folder)) == 0
    assert all(isinstance(size, int) for size in member.sizes["attention"])
    assert not list((tmp_path / "run").glob("**/widths/*"))
    # More choices can only lower the sum of the priors.
    assert runs["bert"][1].metrics["predicted"]["speedup"] >= 1.6


def test_a_table_without_narrower_heads_allows_none(files: Path, tmp_path: Path) -> None:
    linear_table(heads=HEADS).save(tmp_path / "latency.json")
    table = str(tmp_path / "latency.json")
    options = shared_options(files, "bert", tmp_path / "run", latency_table=table, speedup=[1.6])
    (member,) = ziplm.compress(**options)
    assert narrower(attention_sizes(member.folder)) == 0


def test_a_resumed_run_makes_the_same_model(
    files: Path, runs: dict[str, ziplm.Family], tmp_path: Path
) -> None:
    more: dict[str, Any] = {"search": "prior", "prior": "factored"}
    for speedup in ([1.3], [1.3, 1.6]):
        options = shared_options(files, "bert", tmp_path / "run", speedup=speedup, **more)
        made = ziplm.compress(**options)
    for one, other in zip(made, runs["bert"], strict=False):
        first, second = (ziplm.load(member.folder).state_dict() for member in (one, other))
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_resumed_run_prunes_no_width_again(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(**shared_options(files, "bert", tmp_path / "run", speedup=[1.6]))
    run = Run(options.output)
    start = load_start(options, run)
    pruned: list[int] = []
    narrow = WidthTrace._narrowed

    def noted(trace: WidthTrace, width: int) -> Any:
        pruned.append(width)
        return narrow(trace, width)

    monkeypatch.setattr(WidthTrace, "_narrowed", noted)
    fisher = calibrate(start, start.dense, start.samples, 0, run)
    made = []
    for _ in range(2):
        traces = prune(start, start.dense, start.samples, fisher, run)
        made.append(gather_priors(start, start.dense, start.samples, traces, 0, run))
    assert pruned == [16] * 3  # once for each attention
    for name, priors in made[0].items():
        assert all(torch.equal(prior, made[1][name][kind]) for kind, prior in priors.items())
        if name.endswith("attention"):
            path = run.priors_file(name)
            stored = load_file(path)
            assert stored["orders"].shape == (2, HEADS)
            stored["orders"][1] = 0
            save_file(stored, path)
            with pytest.raises(ziplm.BadRun, match=f"{name}.safetensors is damaged"):
                gather_priors(start, start.dense, start.samples, traces, 0, run)
            break


def test_a_damaged_width_trace_is_named(files: Path, tmp_path: Path) -> None:
    options = shared_options(files, "bert", tmp_path / "run", speedup=[1.6], search="prior")
    ziplm.compress(**options)
    for file in (tmp_path / "run").glob("state/traces/widths/*.values.safetensors"):
        file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ziplm.BadRun, match=r"widths/layer0.attention.values.safetensors .*delete that file"):
        ziplm.compress(**{**options, "speedup": [1.6, 2.0]})


def test_gradual_members_start_from_the_sizes_before(tmp_path: Path) -> None:
    options = gradual_options(tmp_path)
    model = lively_model(CLASSIFIER, hidden_size=HEADS * HEAD, num_attention_heads=HEADS)
    ziplm.save(model, tmp_path / "dense", letter_tokenizer())
    table_with_widths().save(tmp_path / "latency.json")
    first, second = ziplm.compress(output=tmp_path / "run", **{**options, "speedup": [1.4, 2.2]})
    pairs = list(zip(attention_sizes(first.folder), attention_sizes(second.folder), strict=True))
    for before, after in pairs:
        assert after.groups <= before.groups
        assert after.groups == 0 or after.width <= before.width
    assert narrower([size for pair in pairs for size in pair]) > 0
    assert first.metrics["training"]["steps"] == 4


def test_two_processes_make_what_one_makes(
    files: Path, runs: dict[str, ziplm.Family], tmp_path: Path
) -> None:
    more: dict[str, Any] = {"speedup": [1.6], "search": "prior", "prior": "factored"}
    assert run_together(shared_options(files, "bert", tmp_path / "two", **more), tmp_path / "notes") == [0, 0]
    one, two = (runs["bert"][1].metrics, notes_in(tmp_path / "notes")[0]["made"][0])
    assert two["sizes"] == one["sizes"]
    for name, expected in ziplm.load(runs["bert"][1].folder).state_dict().items():
        found = ziplm.load(tmp_path / "two" / "1.6x").state_dict()[name]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"gradients": False},
        {"update": False},
        {"selection": "magnitude"},
        {"method": "ziplm"},
        {"method": "ziplm", "gradients": True},
    ],
    ids=lambda options: " ".join(f"{name}={value}" for name, value in options.items()),
)
def test_options_without_which_heads_cannot_be_narrower_switch_it_off(
    options: dict[str, Any], tmp_path: Path
) -> None:
    given = {"model": "m", "task": "t", "output": str(tmp_path / "o"), "speedup": [2]}
    made = ziplm.Options(**given, **options)
    assert not made.head_width
    save_options(made, tmp_path / "config.toml")
    assert load_options(tmp_path / "config.toml") == made  # as a resumed run reads it
    with pytest.raises(ziplm.UsageError, match="narrower heads need gradients"):
        ziplm.Options(**given, **options, head_width=True)


def test_heads_become_narrower_by_default(tmp_path: Path) -> None:
    given = {"model": "m", "task": "t", "output": str(tmp_path / "o"), "speedup": [2]}
    assert ziplm.Options(**given).head_width
    assert ziplm.Options(**given, preset="bert-base-glue").head_width  # says how to train, not how to prune
    assert not ziplm.Options(**given, head_width=False).head_width

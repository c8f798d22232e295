"""Throughput, latency, generation: a table predicts what is measured, by a clock that counts products."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from latency_profiler import CpuClock, Environment, LatencyCurve, LatencyTable, Timing
from transformers import PreTrainedModel
from ziplm.architectures.base import Branch
from ziplm import UsageError, save, shrink
from ziplm.architectures.registry import architecture_of
from ziplm.stages.measure import PartsClock, compare_models
from ziplm.options.setting import Setting
from ziplm.stages.workload import generation
from ziplm.cli import main
from ziplm.stages.levels import BranchLevels, size_grid
from ziplm.stages.profile import Step, _without_branches, branch_steps, by_median, latency_table
from ziplm.stages.choices import Choices
from ziplm_clock import count_products
from ziplm_models import HIDDEN, POSITIONS, VOCABULARY, removed_by, make_traces, tiny_model

DECODER, ENCODER = "GPT2LMHeadModel", "BertForMaskedLM"
PATTERNS = ["nothing", "heads and columns", "first attention", "everything"]


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> None:
    count_products(monkeypatch)


def counting(**settings: Any) -> Setting:
    return Setting(threads=1, clock="cpu", sequence_length=10, **settings)


def sizes_of(model: PreTrainedModel) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {"attention": [], "ffn": []}
    for module in architecture_of(model).modules(model):
        found[module.kind].append(module.groups)
    return found


def shrunk(model: PreTrainedModel, pattern: str) -> PreTrainedModel:
    return shrink(model, removed_by(model, pattern), make_traces(model))


REGIMES: list[tuple[str, dict[str, Any]]] = [
    (DECODER, {"regime": "throughput"}),
    (ENCODER, {"regime": "throughput"}),
    (DECODER, {"regime": "latency", "prompt_lengths": (3, 4, 17)}),
    (ENCODER, {"regime": "latency", "prompt_lengths": (3, 4, 17), "batch_size": 2}),
    (DECODER, {"regime": "generate", "prompt_lengths": (3, 9, 17), "new_tokens": 6}),
    (DECODER, {"regime": "generate", "prompt_lengths": (3, 5, 7, 17), "new_tokens": 6, "batch_size": 2}),
    (DECODER, {"regime": "generate", "prompt_lengths": (5,), "new_tokens": 2}),
    (DECODER, {"regime": "generate", "prompt_lengths": (5, 6), "new_tokens": 1}),
]


@pytest.mark.parametrize(("name", "regime"), REGIMES)
def test_a_table_predicts_what_is_measured(name: str, regime: dict[str, Any], products: None) -> None:
    model, setting = tiny_model(name), counting(**regime)
    models = {pattern: shrunk(model, pattern) for pattern in PATTERNS}
    table = latency_table(model, setting, max_seconds=1e-3)
    measured = compare_models(models, setting, max_seconds=1e-3)
    for pattern, small in models.items():
        assert table.predict(sizes_of(small)) == pytest.approx(measured[pattern].seconds, rel=1e-9)


def test_a_table_is_of_its_setting(products: None) -> None:
    model = tiny_model(DECODER)
    models = {"dense": model, "small": shrunk(model, "first attention")}
    regime: dict[str, Any] = {"regime": "generate", "prompt_lengths": (3, 9, 17), "new_tokens": 6}
    table = latency_table(model, counting(**regime), max_seconds=1e-3)

    def gaps(**change: Any) -> list[float]:
        measured = compare_models(models, counting(**(regime | change)), max_seconds=1e-3)
        return [
            abs(table.predict(sizes_of(small)) / measured[name].seconds - 1) for name, small in models.items()
        ]

    for change in (
        {"new_tokens": 7},
        {"prompt_lengths": (3, 8, 17)},
        {"batch_size": 2},
        {"regime": "latency"},
        {"regime": "throughput"},
    ):
        assert min(gaps(**change)) > 1e-3, change
    assert max(gaps(prompt_lengths=(1, 9, 50))) < 1e-9  # which the median does not feel


@pytest.mark.parametrize("new_tokens", [1, 2, 3, 40])
@pytest.mark.parametrize("prompts", [(4,), (4, 9), (4, 9, 30), (4, 4, 9, 9)])
def test_steps_add_up_to_all_tokens_and_to_the_length_of_the_cache(
    prompts: tuple[int, ...], new_tokens: int
) -> None:
    setting = Setting(regime="generate", prompt_lengths=prompts, new_tokens=new_tokens)
    middle = float(np.median(prompts))
    steps = branch_steps(setting, "attention")
    decoding = {step: share for step, share in steps.items() if step.past}
    assert sum(decoding.values()) == pytest.approx(new_tokens - 1)
    in_cache = sum(share * step.past for step, share in decoding.items() if step.past)
    assert in_cache == pytest.approx(sum(middle + made for made in range(new_tokens - 1)))
    assert sum(share * step.tokens for step, share in steps.items() if step.past == 0) == pytest.approx(
        middle
    )
    assert len(decoding) <= 3
    without_cache = branch_steps(setting, "ffn")
    assert sum(share * step.tokens for step, share in without_cache.items()) == pytest.approx(
        middle + new_tokens - 1
    )
    assert all(step.past is None for step in without_cache)


def test_only_generation_uses_a_cache() -> None:
    setting = Setting(regime="latency", prompt_lengths=(4, 9))
    assert branch_steps(setting, "attention") == {Step(4): 0.5, Step(9): 0.5}
    assert branch_steps(Setting(sequence_length=7), "ffn") == {Step(7): 1.0}


def test_medians_are_made_monotone() -> None:
    def timing(fastest: float, median: float) -> Timing:
        return Timing(fastest, fastest, fastest, fastest, median, 9.0, 0.1, 10, 1, "rel_error")

    timings = (timing(1.0, 4.0), timing(0.9, 2.0), timing(0.8, 3.0))
    curve = by_median(LatencyCurve((8, 4, 0), (1.0, 0.9, 0.8), timings))
    assert curve.seconds == (4.0, 2.5, 2.5)


@pytest.mark.parametrize(("figure", "expected"), [(np.mean, 4.0 + 40.0), (np.median, 2.0 + 20.0)])
def test_parts_of_each_call_are_combined(figure: Callable[..., Any], expected: float) -> None:
    class Known(CpuClock):
        def elapsed(self, run: Callable[[], object]) -> float:
            run()
            return next(seconds)

    seconds: Iterator[float] = iter([1.0, 2.0, 9.0, 10.0, 20.0, 90.0])
    clock = PartsClock(Known(), 3, figure)
    seen: list[object] = []
    call = clock.call([seen.append] * 3)
    assert clock.elapsed(lambda: (call("a", "b", "c"), call("d", "e", "f"))) == expected
    assert seen == list("abcdef")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("pattern", ["nothing", "heads and columns", "first attention"])
def test_blocks_make_up_the_layer_with_and_without_a_cache(pattern: str, attention: str) -> None:
    model = shrunk(tiny_model(DECODER, attention, scale_attn_by_inverse_layer_idx=True), pattern)
    adapter = architecture_of(model)
    hidden = torch.randn(2, 9, HIDDEN, generator=torch.Generator().manual_seed(0))
    seen: list[torch.Tensor] = []
    for layer in adapter.layers(model):
        handle = layer.register_forward_hook(lambda _, __, output: seen.append(output))
        stream = hidden if layer is adapter.layers(model)[0] else seen[-1]
        with torch.no_grad():
            whole = layer(stream, None, adapter.attention_mask(model, stream))
            for past in (None, 0, 1, 8):
                start = past or 0
                before = None if past is None else stream[:, :start]
                mask = adapter.attention_mask(model, stream[:, start:], start)
                attend = adapter.block(layer, "attention", before)
                for _ in range(2):  # the cache is the same in every call
                    middle = attend(stream[:, start:], mask)
                made = adapter.block(layer, "ffn")(middle)
                torch.testing.assert_close(made, whole[:, start:], rtol=1e-4, atol=1e-5)
        handle.remove()


def test_a_block_with_another_past_differs() -> None:
    model = tiny_model(DECODER)
    adapter, layer = architecture_of(model), architecture_of(model).layers(model)[1]
    hidden = torch.randn(1, 9, HIDDEN, generator=torch.Generator().manual_seed(0))
    outputs = [
        adapter.block(layer, "attention", past)(hidden[:, 8:])
        for past in (hidden[:, :8], hidden[:, :7], hidden[:, 1:9])
    ]
    assert not torch.allclose(outputs[0], outputs[1], rtol=1e-3)
    assert not torch.allclose(outputs[0], outputs[2], rtol=1e-3)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", [DECODER, ENCODER])
def test_the_mask_is_what_the_model_gives_its_attentions(name: str, attention: str) -> None:
    model = tiny_model(name, attention)
    adapter = architecture_of(model)
    part = adapter.parts(model, adapter.modules(model)[0])["attn" if name == DECODER else "attention"]
    seen: list[Any] = []
    part.register_forward_pre_hook(
        lambda _, arguments, named: seen.append(named.get("attention_mask", (*arguments, None)[1])),
        with_kwargs=True,
    )
    tokens = torch.ones(2, 7, dtype=torch.int64)
    model(tokens, attention_mask=torch.ones_like(tokens))
    mask = adapter.attention_mask(model, torch.zeros(2, 7, HIDDEN))
    assert (mask is None) == (seen[0] is None) == (name == ENCODER or attention == "sdpa")
    if isinstance(mask, torch.Tensor):
        assert torch.equal(mask.expand_as(seen[0]), seen[0])


@pytest.mark.parametrize("pattern", ["nothing", "first attention", "all attention", "everything"])
def test_every_prompt_gets_all_its_new_tokens(pattern: str) -> None:
    model = shrunk(tiny_model(DECODER), pattern)
    model.generation_config.eos_token_id = list(range(1, VOCABULARY))  # nearly every token ends a text
    prompts = torch.randint(3, VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(0))
    made = generation(model, 7)(prompts)
    assert made.shape == (2, 12)
    assert torch.equal(made[:, :5], prompts)
    torch.manual_seed(7)
    assert torch.equal(generation(model, 7)(prompts), made)


def test_the_bare_model_counts_its_tokens() -> None:
    model = tiny_model(DECODER)
    bare = _without_branches(model)
    prompts = torch.randint(3, VOCABULARY, (1, 5), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first = bare(prompts[:, :3], use_cache=True)
        second = bare(prompts[:, 3:], past_key_values=first.past_key_values, use_cache=True)
        torch.testing.assert_close(second.logits, bare(prompts).logits[:, 3:])
    assert [module.groups for module in architecture_of(model).modules(model)] == [4, 24] * 3
    assert [module.groups for module in architecture_of(bare).modules(bare)] == [0, 0] * 3
    assert model.transformer.h[2].attn.layer_idx == 2


def test_measuring_leaves_the_random_numbers_alone() -> None:
    model = tiny_model(DECODER)
    setting = Setting(threads=1, regime="generate", prompt_lengths=(3,), new_tokens=2)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    compare_models({"dense": model, "small": shrunk(model, "everything")}, setting, max_seconds=1e-3)
    latency_table(model, setting, max_seconds=1e-3)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (ENCODER, {"regime": "generate"}, "BertForMaskedLM cannot generate text; use --regime latency"),
        ("GPT2Model", {"regime": "generate"}, "GPT2Model cannot generate text"),
        (DECODER, {"regime": "generate"}, "64 new tokens cannot be generated; .* 64 positions: give fewer"),
        (DECODER, {"regime": "generate", "new_tokens": 0}, "0 new tokens"),
        (
            DECODER,
            {"regime": "generate", "new_tokens": 24, "prompt_lengths": (8, 41)},
            "a prompt of 41 tokens and 24 new ones is too long; the model takes 64: give prompts of up to 40",
        ),
        (ENCODER, {"regime": "latency", "prompt_lengths": (65,)}, "65 tokens is too long; .* up to 64"),
        (DECODER, {"regime": "latency", "prompt_lengths": (0, 5)}, "a prompt of 0 tokens"),
        (DECODER, {"sequence_length": 65}, "a sequence of 65 is too long for the model; it takes up to 64"),
        (DECODER, {"regime": "latency", "clock": "cpu", "threads": 2}, "use 1 thread or wall"),
    ],
)
def test_what_cannot_be_measured_is_said(name: str, settings: dict[str, Any], message: str) -> None:
    model = tiny_model(name)
    with pytest.raises(UsageError, match=message):
        compare_models({"a": model, "b": model}, Setting(**settings))
    if settings.get("threads") != 2:  # the profiler's own error
        with pytest.raises(UsageError, match=message):
            latency_table(model, Setting(**settings))


def test_generation_is_eager() -> None:
    with pytest.raises(UsageError, match="engine compile; use engine eager"):
        Setting(regime="generate", engine="compile")


def test_lengths_and_batches_suit_the_regime_and_the_model() -> None:
    model = tiny_model(DECODER)
    assert POSITIONS == 64
    assert Setting(regime="latency").for_models([model]).lengths == (16, 64)
    assert Setting(regime="generate", new_tokens=8).for_models([model]).lengths == (16,)
    assert Setting(regime="generate", new_tokens=60).for_models([model]).lengths == (4,)
    assert Setting(regime="latency", prompt_lengths=(9, 3)).for_models([model]).lengths == (3, 9)
    batches = [Setting(regime=regime).batch_size for regime in ("throughput", "latency", "generate")]
    assert batches == [8, 1, 1]
    assert Setting(regime="latency", batch_size=4).batch_size == 4


def test_environments_tell_regimes_apart() -> None:
    settings = [
        Setting(batch_size=1),
        Setting(regime="latency"),
        Setting(regime="latency", prompt_lengths=(16,)),
        Setting(regime="generate", prompt_lengths=(16,)),
        Setting(regime="generate", prompt_lengths=(16,), new_tokens=32),
    ]
    environments = [setting.environment("sdpa") for setting in settings]
    for index, one in enumerate(environments):
        for other in environments[index + 1 :]:
            assert one.differences(other)
    same = Setting(regime="latency", sequence_length=5).environment("sdpa")
    assert not same.differences(environments[1])  # the sequence length is that of other regimes
    assert "regime generate, prompt lengths 16, new tokens 32" in str(environments[-1])


def made_up_choices(seconds: Callable[[float], float]) -> Choices:
    """Twelve modules whose harm grows with the square of what they lose, some more than others."""
    generator = np.random.default_rng(0)
    levels, priors = [], {}
    for layer in range(6):
        for kind, groups in (("attention", 12), ("ffn", 3072)):
            module = Branch(layer, kind, groups, 64 if kind == "attention" else 1)  # type: ignore[arg-type]
            levels.append(BranchLevels(module, tuple(size_grid(module.kind, groups))))
            share = torch.linspace(0, 1, groups + 1)
            priors[module.name] = {"own": generator.uniform(1, 1.5) * share**2}
    curves = {
        kind: LatencyCurve(tuple(sizes), tuple(seconds(size / sizes[0]) for size in sizes))
        for kind, sizes in (("attention", size_grid("attention", 12)), ("ffn", size_grid("ffn", 3072)))
    }
    return Choices(levels, priors, LatencyTable(Environment.current(), 0.5, curves))


def shares_left(choices: Choices) -> list[float]:
    levels = choices.solve("own", {"seconds": choices.dense_seconds / 2})
    left = zip(choices.levels, levels, strict=True)
    return [module.sizes[level] / module.module.groups for module, level in left]


def test_where_each_module_costs_its_overhead_whole_modules_go() -> None:
    left = shares_left(made_up_choices(lambda share: 0.9 + 0.1 * share if share else 0.0))
    assert sum(share == 0 for share in left) >= 6
    assert all(share == 0 or share > 0.5 for share in left)


def test_where_time_is_width_all_modules_stay_and_get_narrower() -> None:
    left = shares_left(made_up_choices(lambda share: share))
    assert all(0.2 < share < 0.8 for share in left)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    model = tiny_model(DECODER)
    save(model, folder / "dense")
    save(shrunk(model, "first attention"), folder / "small")
    return folder


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], env={"COLUMNS": "150"})
    assert result.exit_code == 0, result.output
    return result.output


def test_benchmark_prints_tokens_a_second(checkpoints: Path) -> None:
    lengths = ["--prompt-length", 9, "--prompt-length", 4]
    models = [checkpoints / "dense", checkpoints / "small"]
    limit = ["--max-seconds", 0.01, "--threads", 1]
    shown = run("benchmark", *models, "--regime", "generate", *lengths, "--new-tokens", 3, *limit)
    assert "tokens/s" in shown
    assert "batch 1," in shown
    assert "prompt lengths 4 9, new tokens 3" in shown
    header = next(line for line in shown.splitlines() if "tokens/s" in line)
    row = next(line for line in shown.splitlines() if "small" in line)
    cells = [[cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]] for line in (header, row)]
    values = dict(zip(*cells, strict=True))
    assert float(values["ms"]) * float(values["tokens/s"]) == pytest.approx(3e3, rel=0.02)
    shown = run("benchmark", *models, "--regime", "latency", *limit)
    assert "tokens/s" not in shown
    assert "prompt lengths 16 64" in shown


def test_profile_of_a_regime_says_so(checkpoints: Path, tmp_path: Path) -> None:
    file = tmp_path / "latency.json"
    options = ["--regime", "generate", "--new-tokens", 3, "--prompt-length", 4, "--threads", 1]
    run("profile", checkpoints / "dense", "-o", file, *options, "--profile-seconds", 0.01)
    table = LatencyTable.load(file)
    assert table.environment.batch_size == 1
    details = {"regime": "generate", "prompt lengths": "4", "new tokens": 3}
    assert details.items() <= dict(table.environment.details).items()
    assert table.curves["attention"].sizes == (4, 3, 2, 1, 0)

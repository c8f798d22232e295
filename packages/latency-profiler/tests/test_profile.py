"""Profiles of module families: what is built, the order of timing, and invalid arguments."""

import itertools
from collections.abc import Callable

import pytest
import torch
from latency_profiler import (
    CompileEngine,
    EngineError,
    FactoryError,
    Family,
    LatencyCurve,
    OptionError,
    OutputError,
    SizeError,
    profile,
    profile_families,
)
from latency_profiler._rounds import balanced_repeats
from latency_profiler.blocks import transformer_attention, transformer_ffn
from latency_profiler_clock import FakeClock


def test_curve_of_constant_work_is_exact() -> None:
    clock = FakeClock()
    built = []

    def build(size: int) -> Callable[..., None]:
        built.append(size)
        return clock.work(0.5 * size + 0.25)

    curve = profile(build, [4, 2, 0], (), clock=clock, max_seconds=1e6)
    assert curve == LatencyCurve((4, 2, 0), (2.25, 1.25, 0.25), curve.timings)
    assert built == [4, 2, 0]
    # The quickest size is sampled five times per round.
    assert [timing.runs for timing in curve.timings] == [60, 60, 300]
    assert profile(build, [0, 2, 4], (), clock=clock, max_seconds=1e6) == curve


def test_time_is_the_mean_of_the_fastest_tenth() -> None:
    clock = FakeClock()
    curve = profile(
        lambda size: clock.work(*range(1, 21)), [1], (), clock=clock, min_rounds=60, max_seconds=630
    )
    timing = curve.timings[0]
    assert timing.runs == 60  # 1..20 three times; the fastest six samples are 1, 1, 1, 2, 2, 2
    assert timing.seconds == 1.5
    assert 1.0 <= timing.low < 1.5 < timing.high < timing.median
    assert timing.stopped == "max_seconds"


def test_curve_is_made_monotone_and_keeps_the_measured_times() -> None:
    clock = FakeClock()
    seconds = {3: 4.0, 2: 2.0, 1: 3.0, 0: 1.0}
    curve = profile(
        lambda size: clock.work(seconds[size]), range(3, -1, -1), (), clock=clock, max_seconds=1e6
    )
    assert curve.seconds == (4.0, 2.5, 2.5, 1.0)
    assert [timing.seconds for timing in curve.timings] == [4.0, 2.0, 3.0, 1.0]


def test_all_sizes_of_all_families_are_sampled_in_every_round() -> None:
    clock = FakeClock()
    order: list[tuple[str, int]] = []

    def family(name: str, sizes: list[int]) -> Family:
        def build(size: int) -> Callable[..., None]:
            def run() -> None:
                order.append((name, size))
                clock.time += 1.0 + size

            return run

        return Family(build, sizes, ())

    families = {"attention": family("attention", [2, 1, 0]), "whole": family("whole", [7])}
    curves = profile_families(families, clock=clock, max_seconds=1e6)
    mean = (3.0 + 2.0 + 1.0 + 8.0) / 4
    one_round = [("attention", 0)] * round(mean) + [("attention", 1)] * round(mean / 2)
    one_round += [("attention", 2), ("whole", 7)]
    length = len(one_round)
    rounds = [order[start : start + length] for start in range(len(order) - length * 60, len(order), length)]
    assert all(sorted(samples) == one_round for samples in rounds)
    assert len({tuple(samples) for samples in rounds}) > 30
    assert curves["attention"].seconds == (3.0, 2.0, 1.0)
    assert curves["whole"].seconds == (8.0,)


def test_slow_periods_do_not_distort_the_curve() -> None:
    """The fastest samples give the true times of a machine that is three times slower most of the time."""
    clock = FakeClock()

    def build(size: int) -> Callable[..., None]:
        slowdown = (3.0 if clock.time % 100 > 15 else 1.0 for _ in itertools.count())
        return clock.work_by(size * factor for factor in slowdown)

    curve = profile(build, [4, 3, 2, 1], (), clock=clock, max_seconds=4000)
    assert curve.seconds == pytest.approx((4.0, 3.0, 2.0, 1.0))
    assert curve.timings[0].median == pytest.approx(12.0)


def test_progress_rises_to_one() -> None:
    clock, seen = FakeClock(), []
    profile(
        lambda size: clock.work(1.0),
        [1, 0],
        (),
        clock=clock,
        max_seconds=1e3,
        progress=lambda rounds, fraction: seen.append((rounds, fraction)),
    )
    assert seen[-1] == (60, 1.0)
    assert seen[:2] == [(1, 0.002), (2, 0.004)]


@pytest.mark.parametrize("build", [transformer_attention(16, 4), transformer_ffn(16)])
@pytest.mark.parametrize("engine", ["eager", CompileEngine(backend="eager")])
def test_built_in_blocks_run_at_every_size(build: Callable[[int], torch.nn.Module], engine: object) -> None:
    curve = profile(
        build,
        [4, 1, 0],
        torch.randn(2, 3, 16),
        engine=engine,
        threads=1,
        min_rounds=5,
        max_seconds=0.2,  # type: ignore[arg-type]
    )
    assert curve.sizes == (4, 1, 0)
    assert curve.seconds[0] > 0


@torch.no_grad()
def test_attention_matches_torch() -> None:
    """Compare with torch's own multi-head attention with the same weights."""
    torch.manual_seed(0)
    block = transformer_attention(12, 3)(3)
    x = torch.randn(2, 5, 12)
    own = block.get_submodule("branch")
    reference = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    linear = [own.get_submodule(name) for name in ("query", "key", "value")]
    reference.in_proj_weight.copy_(torch.cat([layer.get_parameter("weight") for layer in linear]))
    reference.in_proj_bias.copy_(torch.cat([layer.get_parameter("bias") for layer in linear]))
    reference.out_proj.load_state_dict(own.get_submodule("output").state_dict())
    expected = torch.nn.functional.layer_norm(x + reference(x, x, x)[0], (12,))
    torch.testing.assert_close(block(x), expected)
    assert not torch.allclose(transformer_attention(12, 3)(2)(x), expected, atol=1e-3)


@pytest.mark.parametrize(("factory", "size"), [(transformer_attention(12, 3), 2), (transformer_ffn(12), 7)])
def test_blocks_have_the_parameters_of_their_size(
    factory: Callable[[int], torch.nn.Module], size: int
) -> None:
    parameters = sum(p.numel() for name, p in factory(size).named_parameters() if name.startswith("branch"))
    attention = 4 * 12 * 8 + 3 * 8 + 12
    ffn = 2 * 12 * 7 + 7 + 12
    assert parameters == (attention if size == 2 else ffn)
    assert not [name for name, _ in factory(0).named_parameters() if name.startswith("branch")]


def test_modules_are_timed_in_eval_mode_without_gradients() -> None:
    clock, seen = FakeClock(), []

    class Module(torch.nn.Module):
        def forward(self) -> None:
            clock.time += 1.0
            seen.append((self.training, torch.is_inference_mode_enabled()))

    profile(lambda size: Module(), [1], (), clock=clock, max_seconds=1e3)
    assert set(seen) == {(False, True)}


def test_every_size_is_compiled() -> None:
    """torch.compile gives up after eight graphs per code object, so every size needs its own code object."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return graph.forward

    engine = CompileEngine(backend=backend)
    build = transformer_ffn(8)
    x = torch.randn(2, 3, 8)
    for size in range(12, 0, -1):
        module = build(size)
        torch.testing.assert_close(engine.prepare(module, (x,))(x), module(x))
    assert len(graphs) == 12


def test_compiler_failure_is_reported_in_one_line() -> None:
    def backend(graph: object, inputs: object) -> object:
        raise RuntimeError("no compiler\nlong story")

    with pytest.raises(EngineError, match=r"torch.compile failed: .*; check that the module runs") as caught:
        CompileEngine(backend=backend).prepare(transformer_ffn(8)(4), (torch.randn(2, 3, 8),))
    assert "\n" not in str(caught.value)


class Nan(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        return {"logits": [x / 0 * 0]}


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda size: 1 // size, FactoryError, "build(0) raised ZeroDivisionError: "),
        (
            lambda size: None,
            FactoryError,
            "build(1) returned NoneType, which is not callable; return a module",
        ),
        (
            lambda size: torch.nn.Linear(7, size + 1),
            OutputError,
            "build(1) failed when called with (2x8 float32): ",
        ),
        (lambda size: Nan(), OutputError, "build(1) returned non-finite values; times measured on NaN"),
    ],
)
def test_bad_factories_are_reported(
    build: Callable[[int], object], error: type[Exception], message: str
) -> None:
    working = (
        build
        if error is not FactoryError or "raised" not in message
        else lambda size: 1 // size and torch.nn.Identity()
    )
    with pytest.raises(error) as caught:
        profile(working, [1, 0], torch.ones(2, 8))  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_invalid_arguments_are_reported() -> None:
    with pytest.raises(SizeError, match="8 comes after 0"):
        profile(transformer_ffn(8), [4, 0, 8], torch.ones(2, 8))
    with pytest.raises(OptionError, match="there are no families"):
        profile_families({})
    with pytest.raises(OptionError, match="unknown engine 'tpu'; use one of eager, compile"):
        profile(transformer_ffn(8), [4], torch.ones(2, 8), engine="tpu")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="hidden size 10 is not a multiple of 3 heads"):
        transformer_attention(10, 3)
    with pytest.raises(OptionError, match="hidden is 0"):
        transformer_ffn(0)


def test_quick_variants_get_as_many_samples_as_fit_into_the_mean_time() -> None:
    assert balanced_repeats([1.0, 1.0, 1.0]) == [1, 1, 1]
    assert balanced_repeats([10.0] * 9 + [3.0]) == [1] * 9 + [3]  # the mean is 9.3
    assert balanced_repeats([1.0, 1e-9, 0.0]) == [1, 8, 8]

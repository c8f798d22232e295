"""Stages of narrower heads: moments of queries and keys, priors, levels, costs and times by definition."""

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from latency_profiler import Environment, LatencyCurve, LatencyTable
from torch.func import functional_call
from transformers import PreTrainedModel
from ziplm.architectures.base import Size
from ziplm.architectures.registry import architecture_of
from ziplm.options.setting import Setting
from ziplm.stages.calibrate import gather_fisher, gather_statistics
from ziplm.stages.costs import branch_costs
from ziplm.stages.fisher import Fisher
from ziplm.stages.levels import best_levels, branch_levels, head_widths, seconds_of
from ziplm.stages.priors import (
    WHOLE_HEADS,
    add_scores,
    add_whole_heads,
    branch_priors,
    exact_priors,
    prior_names_for,
    score_harms,
)
from ziplm.stages.prune import narrow_attention, prune_branch
from ziplm.stages.shrink import mask_to_sizes, shrink_to_sizes
from ziplm.stages.sized_branches import measured_sizes
from ziplm_models import prefix_of, tiny_model
from ziplm_pipeline import ARCHITECTURES, KnownScore, MadeUpTask, hooked, lively_model, one_by_one, samples
from ziplm_widths import make_width_traces, wide_model

TASK = MadeUpTask(KnownScore())
WIDTHS = [8, 5, 2]


class Narrowed:
    """A tiny model with 2 heads of width 8, and the trace of its second attention."""

    def __init__(self, name: str) -> None:
        self.name = name
        heads = "n_head" if prefix_of(name) == "GPT2" else "num_attention_heads"
        self.model = lively_model(name, **{heads: 2})
        self.branches = architecture_of(self.model).branches(self.model)
        self.branch = self.branches[2]
        self.features = samples(name, 30)
        self.fisher = gather_fisher(self.model, TASK, self.features, narrowed=[self.branch], batch_size=7)
        weights = self.fisher.token_weights(self.branch.name, 1)[0]
        self.statistics = gather_statistics(
            self.model, TASK, self.features, [self.branch], {self.branch.name: weights}
        )[self.branch.name]
        made = (self.model, self.branch, self.statistics, self.fisher, 100)
        self.trace = narrow_attention(*made, prune_branch(*made))

    def sizes(self, size: Size) -> list[Size]:
        """Return sizes with which only this attention changes."""
        return [size if branch == self.branch else branch.size for branch in self.branches]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def narrowed(request: pytest.FixtureRequest) -> Narrowed:
    return Narrowed(request.param)


def queries_and_keys(narrowed: Narrowed) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return queries and keys of all tokens and the gradients there, (tokens, heads, d) each, one by one."""
    architecture = architecture_of(narrowed.model)
    layer = architecture.layers(narrowed.model)[narrowed.branch.layer]
    found: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {"query": [], "key": []}
    spec = architecture.spec(narrowed.model, narrowed.branch)
    kept: dict[str, torch.Tensor] = {}

    def keep(path: str) -> Any:
        return lambda _, __, output: kept.update({path: output})

    for _, batch in one_by_one(narrowed.features):
        with ExitStack() as stack:
            for rows in spec.rows:
                stack.enter_context(hooked(layer.get_submodule(rows.path), keep(rows.path)))
            score = TASK.head.scores(TASK.head.outputs(narrowed.model, batch), batch).sum()
        for rows in spec.rows:
            gradient = torch.autograd.grad(score, kept[rows.path], retain_graph=True)[0]
            for place, role in enumerate(rows.roles):
                if role in found:
                    pair = [one[0].chunk(len(rows.roles), -1)[place] for one in (kept[rows.path], gradient)]
                    found[role].append(tuple(one.detach().unflatten(-1, (2, 8)).double() for one in pair))  # type: ignore[arg-type]
    return {role: tuple(map(torch.cat, zip(*pairs, strict=True))) for role, pairs in found.items()}  # type: ignore[misc]


def test_moments_of_queries_and_keys_equal_their_definitions(narrowed: Narrowed) -> None:
    found = narrowed.fisher.scores[narrowed.branch.name]
    for role, (rows, gradients) in queries_and_keys(narrowed).items():
        squares = gradients.square().sum(-1)  # (tokens, heads)
        weights = 0.9 * squares / squares.mean(0) + 0.1
        second = torch.einsum("th,thi,thj->hij", weights, rows, rows) / len(rows)
        made = found.queries if role == "query" else found.keys
        torch.testing.assert_close(made, second, rtol=1e-3, atol=1e-4 * float(second.abs().max()))
        if role == "key":
            mean = torch.einsum("th,thi->hi", weights, rows) / len(rows)
            torch.testing.assert_close(found.key_mean, mean, rtol=1e-3, atol=1e-4 * float(mean.abs().max()))
        plain = torch.einsum("thi,thj->hij", rows, rows) / len(rows)
        assert (made - plain).abs().max() > 0.01 * plain.abs().max()  # control: the weights matter


def test_a_stored_fisher_knows_queries_and_keys(narrowed: Narrowed, tmp_path: Any) -> None:
    narrowed.fisher.save(tmp_path / "fisher")
    loaded = Fisher.load(tmp_path / "fisher").scores
    assert list(loaded) == [narrowed.branch.name]
    for one, other in zip(
        loaded[narrowed.branch.name], narrowed.fisher.scores[narrowed.branch.name], strict=True
    ):
        assert torch.equal(one, other)


def test_priors_of_widths_continue_those_of_whole_heads(narrowed: Narrowed) -> None:
    model, branch, statistics, fisher = narrowed.model, narrowed.branch, narrowed.statistics, narrowed.fisher
    priors = branch_priors(model, branch, statistics, fisher, narrowed.trace, WIDTHS)
    whole = branch_priors(model, branch, statistics, fisher, narrowed.trace.heads)
    gamma = fisher.gamma[branch.name]
    half, mean = statistics.moments.hessian / 2, statistics.moments.mean
    covariance = half - mean.outer(mean)
    dense = architecture_of(model).weight(model, branch).detach().double()
    for name, prior in priors.items():
        assert prior.shape == (3, 3), name
        torch.testing.assert_close(prior[0], whole[name])
        # Without any head, the width does not matter; narrower heads do more harm.
        torch.testing.assert_close(prior[:, -1], prior[:1, -1].expand(3), rtol=1e-6, atol=0)
        assert (prior[1:, :2] > prior[:-1, :2]).all(), name
    for row, width in enumerate(WIDTHS[1:], 1):
        for removed in (0, 1):
            change = narrowed.trace.masked_output(removed, width).double() - dense
            of_values = float(torch.trace(gamma @ change @ covariance @ change.T))
            assert float(priors["factored"][row, removed]) == pytest.approx(of_values, rel=1e-3)


def test_scores_add_the_squared_slopes_of_each_kept_head(narrowed: Narrowed) -> None:
    """The slope is that of a sample's score when only the queries of one head are masked."""
    model, branch = narrowed.model, narrowed.branch
    others, name = samples(narrowed.name, 6, seed=5), branch.name
    widths = {name: WIDTHS}
    harms = score_harms(model, TASK, others, {branch: narrowed.trace.scores}, widths, batch_size=4)[name]
    assert harms.shape == (3, 2)
    assert not harms[0].any()
    tokens = sum(len(sample["input_ids"]) for sample in others)
    for row, width in enumerate(WIDTHS[1:], 1):
        for head in range(2):
            expected = float(score_slopes(narrowed, head, width, others).square().sum()) / tokens
            assert float(harms[row, head]) == pytest.approx(expected, rel=5e-3, abs=1e-5 * float(harms.max()))
    made = (model, branch, narrowed.statistics, narrowed.fisher, narrowed.trace, WIDTHS)
    before, priors = branch_priors(*made), branch_priors(*made)
    add_scores(priors, narrowed.trace.values, harms, WIDTHS)
    for row, width in enumerate(WIDTHS):
        for removed in range(3):
            kept = narrowed.trace.values.kept(removed, width)
            added = priors["factored"][row, removed] - before["factored"][row, removed]
            assert float(added) == pytest.approx(float(harms[row, kept].sum()), rel=1e-6, abs=1e-15)
            assert float(added) > 0 or row == 0 or removed == 2
    share = (priors["factored"] - before["factored"]) / before["factored"][0, -1]
    torch.testing.assert_close(priors["stream"] - before["stream"], share * before["stream"][0, -1])
    squares = priors["own"].square() - before["own"].square()
    torch.testing.assert_close(squares, share * before["own"][0, -1].square())


def test_the_prior_of_whole_heads_prefers_no_narrower_heads(narrowed: Narrowed) -> None:
    made = (narrowed.model, narrowed.branch, narrowed.statistics, narrowed.fisher, narrowed.trace, WIDTHS)
    priors = {narrowed.branch.name: branch_priors(*made)}
    usual = priors[narrowed.branch.name]["factored"]
    add_whole_heads(priors)
    whole = priors[narrowed.branch.name][WHOLE_HEADS]
    assert torch.equal(whole[0], usual[0])
    assert (whole[1:] == whole[0, -1]).all()
    assert not torch.equal(whole, usual)
    assert prior_names_for(priors)[-1] == WHOLE_HEADS


def score_slopes(narrowed: Narrowed, head: int, width: int, features: list[dict[str, Any]]) -> torch.Tensor:
    """Return the slope of each sample's score towards narrower queries of one head, (samples,)."""
    architecture, trace = architecture_of(narrowed.model), narrowed.trace
    layer = architecture.layers(narrowed.model)[narrowed.branch.layer]
    spec = architecture.spec(narrowed.model, narrowed.branch)
    identities = torch.eye(8, dtype=torch.float64).repeat(2, 1)
    to_queries = trace.scores.project_queries(identities, width, scaled=False).view(2, width, 8)
    to_keys = trace.scores.project_keys(identities, width).view(2, width, 8)
    change = torch.zeros(2, 8, 8)
    change[head] = (to_keys[head].mT @ to_queries[head] - torch.eye(8)).float()
    (rows,) = [rows for rows in spec.rows if "query" in rows.roles]
    found = []
    for _, batch in one_by_one(features):
        share = torch.zeros((), requires_grad=True)

        def move(_: Any, __: Any, output: torch.Tensor, share: torch.Tensor = share) -> torch.Tensor:
            blocks = list(output.chunk(len(rows.roles), -1))
            place = rows.roles.index("query")
            queries = blocks[place].unflatten(-1, (2, 8))
            moved = torch.einsum("bthd,hed->bthe", queries, change)
            blocks[place] = (queries + share * moved).flatten(-2)
            return torch.cat(blocks, -1)

        with hooked(layer.get_submodule(rows.path), move):
            logits = narrowed.model(**batch).logits
        found.append(torch.autograd.grad(TASK.head.scores(logits, batch).sum(), share)[0])
    return torch.stack(found).double()


def slopes(narrowed: Narrowed, size: Size, features: list[dict[str, Any]]) -> torch.Tensor:
    """Return the slope of each sample's score along the way to the masked model, (samples,), by autograd."""
    model = narrowed.model
    masked = mask_to_sizes(
        model,
        narrowed.sizes(size),
        [narrowed.trace if branch == narrowed.branch else None for branch in narrowed.branches],
    )
    steps = {
        name: after.detach() - before.detach()
        for (name, before), after in zip(model.named_parameters(), masked.parameters(), strict=True)
    }
    found = []
    for _, batch in one_by_one(features):
        share = torch.zeros((), requires_grad=True)
        moved = {name: one.detach() + share * steps[name] for name, one in model.named_parameters()}
        logits = functional_call(model, moved, kwargs=batch).logits
        found.append(torch.autograd.grad(TASK.head.scores(logits, batch).sum(), share)[0])
    return torch.stack(found).double()


def test_the_exact_prior_of_narrower_heads_equals_slopes_towards_the_masked_model(narrowed: Narrowed) -> None:
    others = samples(narrowed.name, 6, seed=5)
    traces = {narrowed.branch.name: narrowed.trace}
    widths = {narrowed.branch.name: WIDTHS}
    found = exact_priors(
        narrowed.model, TASK, others, [narrowed.branch], traces, batch_size=4, widths=widths
    )[narrowed.branch.name]
    assert found.shape == (3, 3)
    for row, width in enumerate(WIDTHS):
        for removed in range(2):
            expected = float(slopes(narrowed, Size(2 - removed, width), others).square().mean())
            largest = float(found.max())
            assert float(found[row, removed]) == pytest.approx(expected, rel=5e-3, abs=1e-5 * largest)


def test_widths_are_multiples_of_eight_from_sixteen_up() -> None:
    assert head_widths(64) == [64, 56, 48, 40, 32, 24, 16]
    assert head_widths(32) == [32, 24, 16]
    assert head_widths(20) == [20, 16]
    assert head_widths(16) == [16]
    assert head_widths(4) == [4]
    assert head_widths(64, round_to=16) == [64, 48, 32, 16]
    assert head_widths(64, round_to=12) == [64, 48, 24]
    assert head_widths(64, round_to=64) == [64]


def table_of(**curves: dict[int, float]) -> LatencyTable:
    made = {
        name.replace("_", "@"): LatencyCurve(tuple(times), tuple(times.values()))
        for name, times in curves.items()
    }
    return LatencyTable(Environment.current(), 0.0, made)


TABLE = table_of(attention={4: 8.0, 3: 6.2, 2: 4.4, 1: 2.6, 0: 0.5}, attention_16={4: 3.0, 2: 2.0, 1: 1.2})


def test_times_of_widths_are_interpolated() -> None:
    for size, expected in {
        Size(4, 32): 8.0,
        Size(4, 16): 3.0,
        Size(3, 16): 2.5,
        Size(4, 24): 5.5,
        Size(1, 20): 1.55,
        Size(0, 16): 0.5,
    }.items():
        assert seconds_of(TABLE, "attention", size, 32) == pytest.approx(expected), size
    only_heads = LatencyTable(TABLE.environment, 0.0, {"attention": TABLE.curves["attention"]})
    assert seconds_of(only_heads, "attention", Size(4, 16), 32) == pytest.approx(4.4)


def narrow_levels(table: LatencyTable) -> Any:
    model = tiny_model("BertModel", hidden_size=128)
    widths = {f"layer{layer}.attention": [32, 24, 16] for layer in range(3)}
    return branch_levels(architecture_of(model), model, 1, widths, table)[0]


def test_levels_combine_numbers_and_widths_of_heads_that_the_table_knows() -> None:
    levels = narrow_levels(TABLE)
    assert levels.sizes == (
        *(Size(heads, width) for width in (32, 24, 16) for heads in (4, 3, 2, 1)),
        Size(0, 32),
    )
    assert levels.may_narrow
    without = narrow_levels(LatencyTable(TABLE.environment, 0.0, {"attention": TABLE.curves["attention"]}))
    assert without.sizes == tuple(Size(heads, 32) for heads in (4, 3, 2, 1, 0))
    assert not without.may_narrow


@pytest.mark.parametrize("seed", range(5))
def test_the_best_levels_are_those_that_no_other_beats(seed: int) -> None:
    levels = narrow_levels(TABLE)
    generator = torch.Generator().manual_seed(seed)
    priors = [torch.rand(3, 5, generator=generator, dtype=torch.float64) for _ in range(2)]
    for prior in priors:
        prior[0, 0] = 0.0
        prior[:, -1] = 2.0
    best = best_levels(levels, TABLE, priors)
    times = {size: levels.seconds_of(TABLE, size) for size in levels.sizes}
    for size in levels.sizes:
        beaten = [
            any(
                levels.harm(prior, other) <= levels.harm(prior, size) and times[other] <= times[size]
                for other in levels.sizes
                if other != size
            )
            for prior in priors
        ]
        assert (size in best.sizes) == (not all(beaten)), size
    assert (best.sizes[0], best.sizes[-1]) == (Size(4, 32), Size(0, 32))
    ordered = [times[size] for size in best.sizes]
    assert ordered == sorted(ordered, reverse=True)
    assert len(best.sizes) < len(levels.sizes)


@pytest.mark.parametrize("name", ["BertModel", "GPT2LMHeadModel", "MPNetModel", "DistilBertModel"])
def test_parameters_of_narrower_heads_are_those_of_the_shrunk_model(name: str) -> None:
    model = wide_model(name)
    architecture = architecture_of(model)
    widths = {branch.name: [8, 5, 3] for branch in architecture.branches(model) if branch.part == "attention"}
    table = table_of(attention_3={2: 1.0, 1: 0.5})
    levels = branch_levels(architecture, model, 1, widths, table)
    params = branch_costs(architecture, model, levels, Setting(batch_size=2, lengths=(5,)))["params"]
    traces = make_width_traces(model)
    before = parameters_in(architecture.layers(model)[0])
    for size, count in zip(levels[0].sizes, params[0], strict=True):
        sizes = [size, *(own.branch.size for own in levels[1:])]
        small = shrink_to_sizes(model, sizes, traces)
        left = parameters_in(architecture.layers(small)[0])
        assert params[0][0] - count == before - left, size


def parameters_in(layer: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())


def test_a_table_measures_few_sizes_of_narrower_heads() -> None:
    def sizes(model: PreTrainedModel, narrow: bool = True, round_to: int = 1) -> dict[str, list[int]]:
        found = measured_sizes(architecture_of(model), model, "attention", round_to, narrow)
        return {name: own.groups for name, own in found.items()}

    heads = list(range(12, -1, -1))
    wide = tiny_model("BertModel", hidden_size=768, num_attention_heads=12, num_hidden_layers=1)
    few = [12, 9, 6, 3, 1]
    assert sizes(wide) == {"attention": heads, "attention@32": few, "attention@16": few}
    assert sizes(wide, round_to=24) == {"attention": heads, "attention@24": few}
    assert sizes(wide, narrow=False) == {"attention": heads}
    assert sizes(tiny_model("BertModel")) == {"attention": [4, 3, 2, 1, 0]}
    assert set(sizes(tiny_model("LlamaModel", head_dim=64))) == {"attention"}

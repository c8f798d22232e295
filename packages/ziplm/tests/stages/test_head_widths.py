"""Stages of narrower heads: moments of queries and keys, and priors by definition."""

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch.func import functional_call
from ziplm.architectures.base import Size
from ziplm.architectures.registry import architecture_of
from ziplm.stages.calibrate import gather_fisher, gather_statistics
from ziplm.stages.fisher import Fisher
from ziplm.stages.priors import (
    WHOLE_HEADS,
    add_whole_heads,
    branch_priors,
    exact_priors,
    prior_names_for,
)
from ziplm.stages.prune import narrow_attention, prune_branch
from ziplm.stages.score_harms import add_scores, score_harms
from ziplm.stages.shrink import mask_to_sizes
from ziplm_models import prefix_of
from ziplm_pipeline import ARCHITECTURES, KnownScore, MadeUpTask, hooked, lively_model, one_by_one, samples

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
    add_scores(priors, narrowed.trace.orders(WIDTHS), harms)
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

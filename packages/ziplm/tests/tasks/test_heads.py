"""Heads: the scores, outputs and divergences of every kind of output."""

import math
from typing import Any

import pytest
import torch
import ziplm.tasks.language_model
from transformers import PreTrainedModel
from ziplm.architectures.registry import architecture_of
from ziplm.tasks.heads import (
    IGNORED,
    Batch,
    Classification,
    Divergence,
    Embedding,
    Head,
    Spans,
    TokenClassification,
    inputs_of,
    is_clearly_lower,
    mean_divergence,
)
from ziplm.tasks.language_model import LanguageModel
from ziplm_heads import CASES, make_case, padded_batch, score_and_gradient, seeded
from ziplm_models import tiny_model


def test_a_class_is_drawn_from_the_models_own_prediction() -> None:
    """Gradients have mean 0, and the Fisher matrix diag(p) − p pᵀ as second moment."""
    logits, rows = torch.tensor([1.0, -0.5, 0.2, -2.0]), 40_000
    p = logits.softmax(-1)
    score, gradient = score_and_gradient(
        tiny_model("BertForSequenceClassification"), Classification(), logits.repeat(rows, 1), {}
    )
    outcomes = torch.eye(4) - p  # the gradient of log p(y), for each y
    classes = (gradient[:, None] - outcomes).abs().amax(-1).argmin(-1)
    torch.testing.assert_close(gradient, outcomes[classes], rtol=0, atol=1e-6)
    torch.testing.assert_close(score, logits.log_softmax(-1)[classes].sum(), rtol=1e-4, atol=0)
    fisher = sum(p[y] * outcomes[y].outer(outcomes[y]) for y in range(4))
    torch.testing.assert_close(gradient.mean(0), torch.zeros(4), rtol=0, atol=4 / math.sqrt(rows))
    torch.testing.assert_close(gradient.T @ gradient / rows, fisher, rtol=0, atol=4 / math.sqrt(rows))
    uniform = sum(outcomes[y].outer(outcomes[y]) for y in range(4)) / 4
    assert (uniform - fisher).abs().max() > 0.1  # control: classes drawn uniformly would not pass


@pytest.mark.parametrize("case", ["tags", "tags of a decoder"])
def test_tags_are_drawn_independently_and_only_at_labelled_tokens(case: str) -> None:
    model, head, batch = make_case(case)
    outputs = head.outputs(model, batch)
    score, gradient = score_and_gradient(model, head, outputs, batch)
    p = outputs.detach().softmax(-1)
    counted = (batch["labels"] != IGNORED) & (batch["attention_mask"] == 1)
    assert 0 < counted.sum() < batch["attention_mask"].sum()
    assert not gradient[~counted].any()
    tags = (gradient + p)[counted]
    torch.testing.assert_close(tags, torch.nn.functional.one_hot(tags.argmax(-1), 3).float())
    expected = p[counted].log().gather(-1, tags.argmax(-1, keepdim=True)).sum()
    torch.testing.assert_close(score, expected)
    without = {name: value for name, value in batch.items() if name != "labels"}
    _, everywhere = score_and_gradient(model, head, outputs, without)
    assert torch.equal(everywhere.abs().sum(-1) > 0, batch["attention_mask"] == 1)


@pytest.mark.parametrize("case", ["spans", "spans of a decoder"])
def test_starts_and_ends_are_never_drawn_at_padding(case: str) -> None:
    model, head, batch = make_case(case)
    outputs = head.outputs(model, batch)  # (batch, 2, tokens)
    made = model(**batch)
    real = batch["attention_mask"] == 1
    torch.testing.assert_close(outputs[:, 0][real], made.start_logits[real])
    torch.testing.assert_close(outputs[:, 1][real], made.end_logits[real])
    p = outputs.detach().softmax(-1)
    assert not p[:, 0][~real].any()
    seen = set()
    for seed in range(20):
        score, gradient = score_and_gradient(model, head, outputs, batch, seed)
        ends = gradient + p
        chosen = ends.argmax(-1)  # (batch, 2)
        torch.testing.assert_close(ends, torch.nn.functional.one_hot(chosen, 7).float())
        assert real.gather(1, chosen).all()
        torch.testing.assert_close(score, p.log().gather(-1, chosen[..., None]).sum())
        seen.add(tuple(chosen.flatten().tolist()))
    assert len(seen) > 10


@pytest.mark.parametrize("case", ["a number", "mean embedding", "first embedding"])
def test_numbers_and_embeddings_are_projected_on_random_directions(case: str) -> None:
    model, head, batch = make_case(case)
    outputs = head.outputs(model, batch)
    directions = []
    for seed in range(200):
        score, gradient = score_and_gradient(model, head, outputs, batch, seed)
        torch.testing.assert_close(score, (outputs * gradient).sum().detach())
        torch.testing.assert_close(gradient.norm(dim=-1), torch.ones(3))
        directions.append(gradient)
    stacked = torch.cat(directions)  # (600, outputs)
    assert stacked.mean(0).abs().max() < 4 / math.sqrt(600)
    size = outputs.shape[-1]
    torch.testing.assert_close(
        stacked.T @ stacked / 600, torch.eye(size) / size, rtol=0, atol=0.2 / size**0.5
    )


@pytest.mark.parametrize(("pooling", "pooled"), [("mean", True), ("cls", False)])
def test_embeddings_are_pooled_without_padding(pooling: Any, pooled: bool) -> None:
    model, head, batch = tiny_model("BertModel"), Embedding(pooling), padded_batch(Embedding())
    assert head.pooled is pooled
    for row, embedding in enumerate(head.outputs(model, batch)):
        length = int(batch["attention_mask"][row].sum())
        states = model(input_ids=batch["input_ids"][row : row + 1, :length]).last_hidden_state[0]
        expected = states.mean(0) if pooling == "mean" else states[0]
        torch.testing.assert_close(embedding, expected / expected.norm(), rtol=1e-4, atol=1e-5)


def logits_of(model: PreTrainedModel, head: Head, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the logits of all predictions that count, one in each row, (n, classes), in float64."""
    if isinstance(head, LanguageModel):
        counted = head.predicted(batch)
        return architecture_of(model).language_head(model)(outputs[counted]).double()
    if isinstance(head, TokenClassification):
        return outputs[(batch["labels"] != IGNORED) & (batch["attention_mask"] == 1)].double()
    if isinstance(head, Spans):
        pairs = [
            logits[mask == 1]
            for sample, mask in zip(outputs, batch["attention_mask"], strict=True)
            for logits in sample
        ]
        return torch.nn.utils.rnn.pad_sequence(pairs, batch_first=True, padding_value=-math.inf).double()
    return outputs.double()


@pytest.mark.parametrize("case", [case for case in CASES if "embedding" not in case and case != "a number"])
@pytest.mark.parametrize("rows", [4, 256])
def test_the_divergence_of_distributions_is_kl(case: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ziplm.tasks.language_model, "ROWS", rows)
    model, head, batch = make_case(case)
    with torch.no_grad():
        reference = head.outputs(model, batch)
        noise = torch.randn(reference.shape, generator=seeded(1))
        outputs = torch.where(reference > -1e30, reference + 0.3 * noise, reference)
        total, count = head.divergence(model, outputs, model, reference, batch)
        p = logits_of(model, head, reference, batch).softmax(-1)
        q = logits_of(model, head, outputs, batch).softmax(-1)
        terms = torch.where(p > 0, p * (p / q).log(), 0)
    assert total == pytest.approx(float(terms.sum()), rel=1e-4)
    assert total > 0
    assert count == (3 if "classes" in case or "spans" in case else len(p))
    other, _ = head.divergence(model, reference, model, outputs, batch)  # control: KL has a direction
    assert other != pytest.approx(total, rel=1e-3)
    assert head.divergence(model, reference, model, reference, batch).total == pytest.approx(0, abs=1e-6)


def test_the_divergence_of_numbers_and_embeddings_is_a_distance() -> None:
    model, head, batch = make_case("a number")
    outputs, reference = torch.tensor([[1.0], [2.0], [0.0]]), torch.tensor([[0.0], [2.0], [-3.0]])
    assert head.divergence(model, outputs, model, reference, batch) == (5.0, 3)
    model, head, batch = make_case("mean embedding")
    turned = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    assert head.divergence(model, turned, model, torch.tensor([[1.0, 0.0], [1.0, 0.0]]), batch) == (
        pytest.approx(0.4),
        2,
    )


@pytest.mark.parametrize("case", CASES)
def test_padding_changes_no_output_score_or_divergence(case: str) -> None:
    model, head, batch = make_case(case)
    padding = batch["attention_mask"] == 0
    changed = {**batch, "input_ids": torch.where(padding, 9, batch["input_ids"])}
    if "classes of a decoder" in case:  # it finds the last token by the id of the padding
        changed = {**batch, "input_ids": batch["input_ids"].clone()}
    wider = {
        name: torch.nn.functional.pad(value, (0, 2), value=IGNORED if name == "labels" else 0)
        for name, value in batch.items()
    }
    with torch.no_grad():
        reference = head.outputs(model, batch)
        score = head.score(model, reference, batch, seeded(3))
        other = reference.flip(0) if reference.ndim == 2 else reference.clamp(max=0.3)
        total, count = head.divergence(model, other, model, reference, batch)
        assert total > 0
        again = head.outputs(model, changed)
        torch.testing.assert_close(head.score(model, again, changed, seeded(3)), score, rtol=1e-5, atol=1e-5)
        assert head.divergence(model, other, model, again, changed) == (pytest.approx(total, rel=1e-4), count)
        more = head.outputs(model, wider)
        if reference.ndim == 2:
            torch.testing.assert_close(more, reference, rtol=1e-4, atol=1e-5)
        assert head.divergence(model, more, model, more, wider).samples == count
        real = {**batch, "input_ids": batch["input_ids"].clone()}
        real["input_ids"][:, 1] = 9  # control: other tokens do matter
        assert head.divergence(model, head.outputs(model, real), model, reference, batch).total > 1e-4


def test_inputs_contain_no_labels() -> None:
    batch = dict.fromkeys(
        ("input_ids", "attention_mask", "labels", "start_positions", "end_positions"), torch.zeros(1)
    )
    assert list(inputs_of(batch)) == ["input_ids", "attention_mask"]


def test_a_divergence_is_clearly_lower_beyond_two_standard_errors() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(100, generator=generator)
    noise = (noise - noise.mean()) / noise.std()
    others = [Divergence(5.0 + n, 8) for n in range(100)]

    def shifted(by: float) -> list[Divergence]:
        """Return divergences that differ by `by` times the standard error, 0.1, in the mean."""
        return [
            Divergence(o.total + 0.1 * by + float(n), 8) for o, n in zip(others, noise.tolist(), strict=True)
        ]

    assert is_clearly_lower(shifted(-2.1), others)
    assert not is_clearly_lower(shifted(-1.9), others)
    assert not is_clearly_lower(shifted(2.1), others)
    assert not is_clearly_lower(others, others)
    assert not is_clearly_lower(others[:1], others[1:2])  # a single batch has no standard error


def test_the_mean_divergence_weights_batches_by_their_samples() -> None:
    assert mean_divergence([Divergence(3.0, 1), Divergence(1.0, 3)]) == 1.0

"""The head of language models: which tokens are predicted, and how they are drawn."""

import pytest
import torch
import ziplm.tasks.language_model
from ziplm import UnsupportedModel
from ziplm.architectures.registry import architecture_of
from ziplm.tasks.heads import IGNORED, inputs_of
from ziplm.tasks.language_model import LanguageModel
from ziplm_heads import make_case, score_and_gradient, seeded
from ziplm_pipeline import hooked, with_another_head


@pytest.mark.parametrize("case", ["next tokens", "masked tokens"])
@pytest.mark.parametrize("rows", [4, 256])
def test_tokens_are_drawn_at_predicted_positions_a_few_rows_at_a_time(
    case: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ziplm.tasks.language_model, "ROWS", rows)
    model, head, batch = make_case(case)
    assert isinstance(head, LanguageModel)
    outputs = head.outputs(model, batch)
    alive: list[int] = []
    decoder = architecture_of(model).language_head(model)
    assert isinstance(decoder, torch.nn.Module)
    with hooked(decoder, lambda _, given: alive.append(len(given[0])), before=True):
        score, gradient = score_and_gradient(model, head, outputs, batch)
    assert max(alive) <= rows
    assert sum(alive) == head.predicted(batch).sum()
    predicted = head.predicted(batch)
    assert not gradient[~predicted].any()
    language_head = architecture_of(model).language_head(model)
    total = 0.0
    for state, found in zip(outputs[predicted].detach(), gradient[predicted], strict=True):
        possible = torch.autograd.functional.jacobian(lambda x: language_head(x).log_softmax(-1), state)
        token = (possible - found).abs().amax(-1).argmin()
        torch.testing.assert_close(found, possible[token], rtol=1e-4, atol=1e-5)
        total += float(language_head(state).detach().log_softmax(-1)[token])
    assert float(score) == pytest.approx(total, rel=1e-5)


def test_predicted_positions_have_a_next_token_or_a_label() -> None:
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0]])
    causal = [[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert LanguageModel("causal").predicted({"attention_mask": mask}).int().tolist() == causal
    labels = torch.tensor([[IGNORED, 7, 0], [IGNORED, IGNORED, 5]])
    assert LanguageModel("masked").predicted({"labels": labels}).int().tolist() == [[0, 1, 1], [0, 0, 1]]


@pytest.mark.parametrize("case", ["next tokens", "masked tokens"])
def test_the_language_head_makes_the_models_logits_of_the_outputs(case: str) -> None:
    model, head, batch = make_case(case)
    logits = architecture_of(model).language_head(model)(head.outputs(model, batch))
    torch.testing.assert_close(logits, model(**inputs_of(batch)).logits)


@pytest.mark.parametrize("case", ["next tokens", "masked tokens"])
@torch.no_grad()
def test_each_model_reads_its_states_with_its_own_language_head(case: str) -> None:
    """As after fine-tuning, which trains the head: the states may be equal, and the predictions not."""
    dense, head, batch = make_case(case)
    assert isinstance(head, LanguageModel)
    trained = with_another_head(dense)
    states = head.outputs(dense, batch)
    torch.testing.assert_close(head.outputs(trained, batch), states, rtol=0, atol=0)
    counted = head.predicted(batch)
    p, q = (model(**inputs_of(batch)).logits[counted].double().softmax(-1) for model in (dense, trained))
    expected = float((p * (p / q).log()).sum())
    assert expected > 1e-2
    total, count = head.divergence(trained, states, dense, states, batch)
    assert (total, count) == (pytest.approx(expected, rel=1e-4), int(counted.sum()))
    assert head.divergence(trained, states, trained, states, batch).total == 0  # control: the same head


def test_a_model_without_a_language_head_is_refused() -> None:
    model, _, batch = make_case("mean embedding")
    head = LanguageModel("causal")
    with pytest.raises(UnsupportedModel, match="BertModel has no language head"):
        head.score(model, head.outputs(model, batch), batch, seeded(0))


@pytest.mark.parametrize("case", ["classes", "tags", "next tokens", "masked tokens"])
def test_the_models_own_loss_is_a_mean_over_the_counted_labels(case: str) -> None:
    model, head, batch = make_case(case)
    labels = {
        "classes": torch.tensor([0, 2, 1]),
        "next tokens": torch.where(batch["attention_mask"] == 1, batch["input_ids"], IGNORED),
    }
    batch = {**batch, "labels": labels.get(case, batch.get("labels"))}
    with torch.no_grad():
        output = model(**batch)
    logits, wanted = output.logits, batch["labels"]
    if case == "next tokens":
        logits, wanted = logits[:, :-1], wanted[:, 1:]
    total = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2), wanted.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    assert float(output.loss) * head.counted_labels(batch) == pytest.approx(float(total), rel=1e-5)

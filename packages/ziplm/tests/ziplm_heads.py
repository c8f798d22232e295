"""A tiny model and a padded batch for every head, and the gradient of a head's score."""

from collections.abc import Callable

import torch
from transformers import PreTrainedModel
from ziplm.tasks.heads import (
    IGNORED,
    Batch,
    Classification,
    Embedding,
    Head,
    Regression,
    Spans,
    TokenClassification,
)
from ziplm.tasks.language_model import LanguageModel
from ziplm_models import VOCABULARY
from ziplm_pipeline import lively_model

CASES: dict[str, tuple[str, Callable[[], Head]]] = {
    "classes": ("BertForSequenceClassification", Classification),
    "classes of a decoder": ("GPT2ForSequenceClassification", Classification),
    "tags": ("BertForTokenClassification", TokenClassification),
    "tags of a decoder": ("GPT2ForTokenClassification", TokenClassification),
    "spans": ("BertForQuestionAnswering", Spans),
    "spans of a decoder": ("GPT2ForQuestionAnswering", Spans),
    "a number": ("BertForSequenceClassification", Regression),
    "mean embedding": ("BertModel", Embedding),
    "first embedding": ("BertModel", lambda: Embedding("cls")),
    "next tokens": ("GPT2LMHeadModel", LanguageModel),
    "masked tokens": ("BertForMaskedLM", lambda: LanguageModel("masked")),
}


def padded_batch(head: Head) -> Batch:
    """Return three samples of 7, 5 and 3 tokens, with labels if the head uses them."""
    ids = torch.randint(5, VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [1] * 3 + [0] * 4])
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    if isinstance(head, TokenClassification) or (isinstance(head, LanguageModel) and head.kind == "masked"):
        batch["labels"] = torch.where((mask == 1) & (ids % 2 == 0), 1, IGNORED)
    return batch


def make_case(case: str) -> tuple[PreTrainedModel, Head, Batch]:
    """Return a model, its head and a batch for one of CASES."""
    name, head_class = CASES[case]
    settings = {"num_labels": 1 if case == "a number" else 3} if "Classification" in name else {}
    head = head_class()
    return lively_model(name, **settings), head, padded_batch(head)


def seeded(seed: int) -> torch.Generator:
    """Return a random generator with a seed."""
    return torch.Generator().manual_seed(seed)


def score_and_gradient(
    model: PreTrainedModel, head: Head, outputs: torch.Tensor, batch: Batch, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the score of outputs, and its gradient with respect to them."""
    outputs = outputs.detach().requires_grad_()
    score = head.score(model, outputs, batch, seeded(seed))
    return score.detach(), torch.autograd.grad(score, outputs)[0]

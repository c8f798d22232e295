"""The head of language models, which predict next or masked tokens."""

from typing import Literal

import torch
from transformers import PreTrainedModel

from ziplm.architectures.registry import language_head
from ziplm.tasks.heads import (
    IGNORED,
    Batch,
    Divergence,
    Head,
    inputs_of,
    kl_divergence,
    sampled_log_probability,
)

ROWS = 64  # rows of logits in memory at once


class LanguageModel(Head):
    """Next or masked tokens. Outputs are hidden states, because logits are much larger.

    Args:
        kind: "causal" if tokens are predicted from those before, "masked" if from those around.
    """

    def __init__(self, kind: Literal["causal", "masked"] = "causal") -> None:
        self.kind = kind

    def outputs(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return the hidden states that the language head reads, (batch, tokens, hidden)."""
        return model.base_model(**inputs_of(batch)).last_hidden_state

    def score(
        self, model: PreTrainedModel, outputs: torch.Tensor, batch: Batch, generator: torch.Generator
    ) -> torch.Tensor:
        """Return Σ log p(token) over predicted positions, with each token drawn from its position's p."""
        head = language_head(model)
        rows = outputs[self.predicted(batch)]  # (n, hidden)
        total, slopes = rows.new_zeros(()), []
        for part in rows.detach().requires_grad_(rows.requires_grad).split(ROWS):
            score = sampled_log_probability(head(part), generator)
            total = total + score.detach()
            if rows.requires_grad:
                slopes.append(torch.autograd.grad(score, part)[0])
        if not slopes:
            return total
        # Return a linear function of the rows that has the score's value and gradient, so that no logits are
        # kept for the backward pass.
        return total + ((rows - rows.detach()) * torch.cat(slopes)).sum()

    def divergence(
        self,
        model: PreTrainedModel,
        outputs: torch.Tensor,
        reference_model: PreTrainedModel,
        reference: torch.Tensor,
        batch: Batch,
    ) -> Divergence:
        """Return KL over the vocabulary, summed over predicted positions."""
        head, reference_head = language_head(model), language_head(reference_model)
        predicted = self.predicted(batch)
        pairs = zip(outputs[predicted].split(ROWS), reference[predicted].split(ROWS), strict=True)
        return Divergence(
            sum(kl_divergence(head(own), reference_head(other)) for own, other in pairs), int(predicted.sum())
        )

    def predicted(self, batch: Batch) -> torch.Tensor:
        """Return the positions whose prediction counts; boolean, (batch, tokens)."""
        if self.kind == "masked":
            return batch["labels"] != IGNORED
        mask = batch["attention_mask"].bool()
        following = torch.zeros_like(mask)
        following[:, :-1] = mask[:, 1:]
        return mask & following

    def counted_labels(self, batch: Batch) -> int:
        """Return the number of labels over which the model's own loss is a mean."""
        if self.kind == "causal":  # the first token has no context, so it is not predicted
            batch = {**batch, "labels": batch["labels"][:, 1:]}
        return super().counted_labels(batch)

"""Heads: how to read a model's outputs, sample from them, and compare them, all without labels.

Calibration takes gradients of the log-probability of outcomes drawn from the model's own predictions, whose
outer products estimate the Fisher information. The search uses the divergence from the reference model.
"""

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from transformers import PreTrainedModel

Batch = dict[str, torch.Tensor]

LABELS = ("labels", "start_positions", "end_positions")
IGNORED = -100


class Divergence(NamedTuple):
    """Summed divergence of some samples, and their number; where tokens are judged, each is a sample."""

    total: float
    samples: int


def mean_divergence(parts: Sequence[Divergence]) -> float:
    """Return the mean over all samples."""
    return math.fsum(part.total for part in parts) / sum(part.samples for part in parts)


def is_clearly_lower(parts: Sequence[Divergence], others: Sequence[Divergence]) -> bool:
    """Return whether one model's divergence is lower than another's by more than two standard errors.

    On a hundred short texts, a difference of a tenth is chance: refitting MiniLM at 3x lowered the divergence
    by 16 % on 128 phrases of SST-2's training set, but raised it by 40 % on 1000 sentences.

    Args:
        parts: divergences of one model, batch by batch; at least two for a standard error.
        others: divergences of the other model on the same batches.
    """
    changes = [part.total - other.total for part, other in zip(parts, others, strict=True)]
    if len(changes) < 2:
        return False
    return math.fsum(changes) < -2 * math.sqrt(len(changes)) * statistics.stdev(changes)


def inputs_of(batch: Mapping[str, torch.Tensor]) -> Batch:
    """Return a batch without its labels, so that the model computes no loss."""
    return {name: value for name, value in batch.items() if name not in LABELS}


class Head(ABC):
    """Interface of one kind of output."""

    pooled = False
    """Whether an output is a mean over many tokens, in which their errors add up."""
    reads_one_token = False
    """Whether an output follows from the last hidden state of a single token."""
    has_loss = True
    """Whether models with this head return logits, and a loss if they are given labels."""
    pooling: Literal["mean", "cls"] | None = None
    """How the last hidden states become one embedding; None for heads with logits."""

    @abstractmethod
    def outputs(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Run the model and return its outputs, with samples as the first dimension.

        Gradients are tracked if they are enabled.
        """

    @abstractmethod
    def score(
        self, model: PreTrainedModel, outputs: torch.Tensor, batch: Batch, generator: torch.Generator
    ) -> torch.Tensor:
        """Draw an outcome for each sample from the outputs, and return the sum of the log-probabilities.

        Outputs that are not a distribution are projected on a random direction of unit length instead.

        Args:
            model: the model that made the outputs.
            outputs: result of `outputs`.
            batch: the batch that the model was called with.
            generator: source of the random draws.

        Returns:
            A scalar with gradients.
        """

    @abstractmethod
    def divergence(
        self,
        model: PreTrainedModel,
        outputs: torch.Tensor,
        reference_model: PreTrainedModel,
        reference: torch.Tensor,
        batch: Batch,
    ) -> Divergence:
        """Return how far outputs are from those of a reference model: KL(reference ‖ outputs), or a distance.

        Args:
            model: the model to judge; its language head turns its own hidden states into logits.
            outputs: result of `outputs` for it.
            reference_model: the reference model, whose language head may differ, as after fine-tuning.
            reference: result of `outputs` for the reference model.
            batch: the batch that both models were called with.
        """

    def counted_labels(self, batch: Batch) -> int:
        """Return the number of labels over which the model's own loss is a mean."""
        labels = batch.get("labels")
        if labels is None or labels.ndim == 1:
            return len(batch["input_ids"])
        return int((labels != IGNORED).sum())


class Classification(Head):
    """One class for each sample, from logits (batch, classes)."""

    reads_one_token = True

    def outputs(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return logits, (batch, classes)."""
        return model(**inputs_of(batch)).logits

    def score(
        self, model: PreTrainedModel, outputs: torch.Tensor, batch: Batch, generator: torch.Generator
    ) -> torch.Tensor:
        """Return Σ log p(y), with y drawn from p for each sample."""
        return sampled_log_probability(outputs, generator)

    def divergence(
        self,
        model: PreTrainedModel,
        outputs: torch.Tensor,
        reference_model: PreTrainedModel,
        reference: torch.Tensor,
        batch: Batch,
    ) -> Divergence:
        """Return KL over classes, summed over samples."""
        return Divergence(kl_divergence(outputs, reference), len(outputs))


class TokenClassification(Head):
    """One class for each token, from logits (batch, tokens, classes).

    Padding, and tokens whose label is ignored, do not count.
    """

    def outputs(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return logits, (batch, tokens, classes)."""
        return model(**inputs_of(batch)).logits

    def score(
        self, model: PreTrainedModel, outputs: torch.Tensor, batch: Batch, generator: torch.Generator
    ) -> torch.Tensor:
        """Return Σ log p(y) over tokens, with each y drawn from its token's p."""
        return sampled_log_probability(outputs[_labelled(batch)], generator)

    def divergence(
        self,
        model: PreTrainedModel,
        outputs: torch.Tensor,
        reference_model: PreTrainedModel,
        reference: torch.Tensor,
        batch: Batch,
    ) -> Divergence:
        """Return KL over classes, summed over tokens."""
        counted = _labelled(batch)
        return Divergence(kl_divergence(outputs[counted], reference[counted]), int(counted.sum()))


class Spans(Head):
    """A span of tokens for each sample, from start and end logits whose classes are positions."""

    def outputs(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return logits, (batch, 2, tokens); at padding, they are the lowest finite number."""
        made = model(**inputs_of(batch))
        logits = torch.stack([made.start_logits, made.end_logits], dim=1)
        return logits.masked_fill(batch["attention_mask"][:, None] == 0, torch.finfo(logits.dtype).min)

    def score(
        self, model: PreTrainedModel, outputs: torch.Tensor, batch: Batch, generator: torch.Generator
    ) -> torch.Tensor:
        """Return Σ log p(start) + log p(end), with both positions drawn."""
        return sampled_log_probability(outputs.flatten(0, 1), generator)

    def divergence(
        self,
        model: PreTrainedModel,
        outputs: torch.Tensor,
        reference_model: PreTrainedModel,
        reference: torch.Tensor,
        batch: Batch,
    ) -> Divergence:
        """Return KL over positions, summed over starts, ends and samples."""
        return Divergence(kl_divergence(outputs.flatten(0, 1), reference.flatten(0, 1)), len(outputs))


class Regression(Head):
    """Real numbers for each sample, usually one, of shape (batch, outputs)."""

    reads_one_token = True

    def outputs(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return predictions, (batch, outputs)."""
        return model(**inputs_of(batch)).logits

    def score(
        self, model: PreTrainedModel, outputs: torch.Tensor, batch: Batch, generator: torch.Generator
    ) -> torch.Tensor:
        """Return the sum of the projections on random directions of unit length."""
        return _projected(outputs, generator)

    def divergence(
        self,
        model: PreTrainedModel,
        outputs: torch.Tensor,
        reference_model: PreTrainedModel,
        reference: torch.Tensor,
        batch: Batch,
    ) -> Divergence:
        """Return half the squared distance, which is the KL of unit normals around the predictions."""
        return Divergence(float((outputs - reference).double().square().sum()) / 2, len(outputs))


class Embedding(Head):
    """One vector of unit length for each sample, from the last hidden states.

    Args:
        pooling: "mean" for their mean over all tokens, "cls" for the first token's.
    """

    has_loss = False

    def __init__(self, pooling: Literal["mean", "cls"] = "mean") -> None:
        self.pooling: Literal["mean", "cls"] = pooling
        self.pooled = pooling == "mean"
        self.reads_one_token = pooling == "cls"

    def outputs(self, model: PreTrainedModel, batch: Batch) -> torch.Tensor:
        """Return embeddings of unit length, (batch, hidden)."""
        states = model(**inputs_of(batch)).last_hidden_state
        if self.pooling == "cls":
            return F.normalize(states[:, 0], dim=-1)
        mask = batch["attention_mask"][..., None].to(states.dtype)
        return F.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)

    def score(
        self, model: PreTrainedModel, outputs: torch.Tensor, batch: Batch, generator: torch.Generator
    ) -> torch.Tensor:
        """Return the sum of the projections on random directions of unit length."""
        return _projected(outputs, generator)

    def divergence(
        self,
        model: PreTrainedModel,
        outputs: torch.Tensor,
        reference_model: PreTrainedModel,
        reference: torch.Tensor,
        batch: Batch,
    ) -> Divergence:
        """Return the cosine distance, summed over samples."""
        return Divergence(float((1 - (outputs * reference).double().sum(-1)).sum()), len(outputs))


def _labelled(batch: Batch) -> torch.Tensor:
    """Return which tokens count: no padding and, if there are labels, none that is ignored.

    Boolean, (batch, tokens).
    """
    mask = batch["attention_mask"].bool()
    return mask & (batch["labels"] != IGNORED) if "labels" in batch else mask


def sampled_log_probability(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return Σ log p(y) over the rows of logits (n, classes), with y drawn from p."""
    log_probabilities = logits.float().log_softmax(-1)
    # Draw on the generator's device, so that models on all devices draw the same outcomes.
    probabilities = log_probabilities.detach().exp().to(generator.device)
    drawn = torch.multinomial(probabilities, 1, generator=generator).to(logits.device)
    return log_probabilities.gather(-1, drawn).sum()


def _projected(outputs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the sum of the projections of rows (n, d) on random directions of unit length."""
    directions = torch.randn(outputs.shape, generator=generator).to(outputs)
    return (outputs * F.normalize(directions, dim=-1)).sum()


@torch.no_grad()
def kl_divergence(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """Return Σ KL(softmax(reference) ‖ softmax(logits)) over rows (n, classes)."""
    own, other = logits.float().log_softmax(-1), reference.float().log_softmax(-1)
    return float(F.kl_div(own, other, reduction="sum", log_target=True))

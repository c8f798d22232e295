"""One vector for a text, as sentence-transformers makes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.checkpoint import load
from ziplm.errors import UsageError
from ziplm.heads import Embedding
from ziplm.network import from_hub
from ziplm.tasks.base import Features, Progress, Source, Splits, Task
from ziplm.tasks.columns import TEXT_NAMES, numbers_of, text_columns, texts_of
from ziplm.tasks.encoding import Tokenised, check_fit, padding_token
from ziplm.tasks.files import Table, existing, read_table, read_text
from ziplm.tasks.inference import evaluation_batches, finite, inference
from ziplm.tasks.metrics import pearson, spearman
from ziplm.tasks.reading import read_parts
from ziplm.tasks.sentence_folder import Pooling, copy_settings, read_settings

NEIGHBOURS = 10
ROWS = 1024  # of similarities that are alive at once


class EmbeddingTask(Task):
    """Embeddings of texts.

    Judged by how well cosines of pairs follow people's scores if the evaluation file has two columns of text
    and one of scores; else by how many of a text's nearest neighbours are the same as with the dense model.

    Args:
        pooling: "mean" or "cls"; None: as a sentence-transformers folder says, else the mean.
        dataset: on the hub, as ``name`` or ``name:config``, used if no files are given.
    """

    name = "embedding"
    class_endings = ("",)  # any head can be left off

    def __init__(self, pooling: Pooling | None = None, dataset: str | None = None) -> None:
        if pooling not in (None, *get_args(Pooling)):
            raise UsageError(f"the pooling is {pooling!r}", "give mean or cls")
        self.pooling = pooling
        self.dataset = dataset
        self.head: Embedding = Embedding(pooling or "mean")
        self.metric = "spearman"
        self.longest: int | None = None
        self.reference: torch.Tensor | None = None

    def load_model(self, path: str, **options: Any) -> PreTrainedModel:
        """The model without any head. What sentence-transformers keeps beside it is read, too."""
        saved, self.longest = read_settings(path)
        self.head = Embedding(self.pooling or saved or "mean")
        model = load(path, **options).base_model
        assert isinstance(model, PreTrainedModel)
        if getattr(model, "pooler", model) is None:  # that of a masked language model, say
            # Checkpoints of the bare model hold one. It plays no part here, so it may be random.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = type(model).from_pretrained(path, **from_hub(path), **options).eval()
        return model

    def load_splits(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source, max_length: int
    ) -> Splits:
        """See `Task.load_splits`. Texts are cut at the length that the folder says, if that is less."""
        max_length = min(max_length, self.longest or max_length)
        check_fit(model, tokenizer, max_length)
        self.padding_id = padding_token(model, tokenizer)
        train, evaluation = read_parts(
            self.name,
            source,
            lambda path: read_sentences(path, source),
            lambda table: sentences_of(table, source),
            self.dataset,
        )
        if evaluation:
            self.metric = "spearman" if all(s.scores for s in evaluation.values()) else "neighbour_overlap"
        return Splits(
            Tokenised(tokenizer, [train.texts], max_length, {}) if train else (),
            {name: sentences.tokenised(tokenizer, max_length) for name, sentences in evaluation.items()},
        )

    def embed(
        self,
        model: PreTrainedModel,
        features: Sequence[Features],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> torch.Tensor:
        """Embeddings of unit length, float32 (examples, hidden)."""
        embeddings = torch.zeros(len(features), model.config.hidden_size)
        with inference(model):
            for chosen, batch in evaluation_batches(self, model, features, batch_size, progress):
                embeddings[chosen] = self.head.outputs(model, batch).float().cpu()
        return embeddings

    def prepare_reference(self, model: PreTrainedModel, features: Sequence[Features]) -> None:
        """Keep the dense model's nearest neighbours to compare with; with scores, there is no need."""
        if "score" not in features[0]:
            self.reference = nearest(self.embed(model, features))

    def evaluate(
        self,
        model: PreTrainedModel,
        features: Sequence[Features],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> dict[str, float]:
        """See `Task.evaluate`. Without scores, `prepare_reference` comes first, with the same features."""
        embeddings = self.embed(model, features, batch_size, progress)
        if "score" in features[0]:
            cosines = (embeddings[::2] * embeddings[1::2]).sum(-1).numpy()
            scores = torch.tensor([feature["score"] for feature in features[::2]]).numpy()
            return finite({"spearman": spearman(cosines, scores), "pearson": pearson(cosines, scores)})
        own = nearest(embeddings)
        if self.reference is None or self.reference.shape != own.shape:
            raise UsageError(
                "there is no dense model to compare neighbours with",
                "evaluate on pairs with scores, or give --dense MODEL",
            )
        same = (own[:, :, None] == self.reference[:, None, :]).any(-1)  # (texts, neighbours)
        return {"neighbour_overlap": float(same.float().mean())}

    def copy_extras(self, source: str | Path, target: str | Path) -> None:
        """Write what makes the result open in sentence-transformers, with the pooling of this task."""
        copy_settings(source, target, self.head.pooling)


@dataclass(frozen=True)
class Sentences:
    """Texts; with scores, of pairs, the two texts of a pair stand one after the other."""

    texts: list[str]
    scores: list[float]

    def tokenised(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[Features]:
        """Features of all texts, both of a pair with its score."""
        others = {"score": [score for score in self.scores for _ in range(2)]} if self.scores else {}
        return Tokenised(tokenizer, [self.texts], max_length, others).all()


def read_sentences(path: str, source: Source) -> Sentences:
    """One text a line, or a table."""
    if existing(path).suffix.lower() != ".txt":
        return sentences_of(read_table(path), source)
    lines = [line.strip() for line in read_text(path).split("\n")]
    if not any(lines):
        raise UsageError(f"{path} holds no text", "give one sentence a line")
    return Sentences([line for line in lines if line], [])


def sentences_of(table: Table, source: Source) -> Sentences:
    """The texts of a table, and its scores if there are two columns of text."""
    label = source.label_column or next((name for name in ("score", "label") if name in table.columns), None)
    columns = text_columns(table, source.text_columns, TEXT_NAMES, label)
    texts = [texts_of(table, column) for column in columns]
    scores = numbers_of(table, label) if label and len(columns) == 2 else []
    return Sentences([text for row in zip(*texts, strict=True) for text in row], scores)


def nearest(embeddings: torch.Tensor) -> torch.Tensor:
    """The nearest others of each, (texts, at most 10), given embeddings of unit length (texts, hidden)."""
    count = min(NEIGHBOURS, (len(embeddings) - 1) // 2)
    if count < 1:
        raise UsageError(f"{len(embeddings)} texts have no neighbours to speak of", "give 30 or more")
    found = []
    for start in range(0, len(embeddings), ROWS):
        cosines = embeddings[start : start + ROWS] @ embeddings.T  # (rows, texts)
        rows = torch.arange(len(cosines))
        cosines[rows, start + rows] = -torch.inf
        found.append(cosines.topk(count, dim=-1).indices)
    return torch.cat(found)

"""Text embeddings, as in sentence-transformers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.architectures.checkpoint import load_as, read_config
from ziplm.architectures.exported import ExportedModel, home_of, open_model
from ziplm.errors import UsageError
from ziplm.options.source import Source
from ziplm.tasks.base import Features, Predictions, Progress, Splits, Task
from ziplm.tasks.columns import TEXT_NAMES, numbers_of, text_columns, texts_of
from ziplm.tasks.encoding import Tokenised, padding_token, require_match
from ziplm.tasks.files import Table, existing, read_table, read_text
from ziplm.tasks.finite import finite, finite_outputs
from ziplm.tasks.heads import Embedding
from ziplm.tasks.inference import evaluation_batches, inference
from ziplm.tasks.metrics import pearson, spearman
from ziplm.tasks.reading import read_parts
from ziplm.tasks.sentence_folder import Pooling, copy_settings, read_settings

NEIGHBOURS = 10
KNOWN_SPLITS = 8  # splits whose neighbours are remembered
ROWS = 1024  # rows of the similarity matrix computed at a time


class EmbeddingTask(Task):
    """Embed each text as one vector.

    If the evaluation data has two columns of text and one of scores, the metric is the correlation of the
    cosines of the pairs with the scores. Otherwise it is the share of each text's nearest neighbours that are
    the same as with the dense model.

    Args:
        pooling: "mean" or "cls". None takes the pooling of a sentence-transformers folder, and "mean" for
            other models.
        dataset: dataset on the hub, as ``name`` or ``name:config``, used if no files are given.

    Raises:
        UsageError: if the pooling is unknown.
    """

    name = "embedding"
    class_endings = ("",)  # any model will do, since its head is dropped

    def __init__(self, pooling: Pooling | None = None, dataset: str | None = None) -> None:
        if pooling not in (None, *get_args(Pooling)):
            raise UsageError(f"the pooling is {pooling!r}", "give mean or cls")
        self.pooling = pooling
        self.dataset = dataset
        self.head: Embedding = Embedding(pooling or "mean")
        self.metric = "spearman"
        self.longest: int | None = None
        self.reference: torch.Tensor | None = None
        # The model and the features are kept, so that no other ones can be taken for them.
        self._known: list[tuple[PreTrainedModel, Sequence[Features], torch.Tensor]] = []

    def load_model(self, path: str, **options: Any) -> PreTrainedModel:
        """Load the model without its head, and read the settings of sentence-transformers beside it."""
        saved, self.longest = read_settings(home_of(path))
        self.head = Embedding(self.pooling or saved or "mean")
        opened = open_model(path, **options)
        if isinstance(opened, ExportedModel) and "last_hidden_state" not in opened.loaded.outputs:
            raise UsageError(f"{path} has only the outputs of its head", "export a model without a head")
        model = opened.base_model
        assert isinstance(model, PreTrainedModel)
        if getattr(model, "pooler", model) is None:  # for example in a masked language model
            # A checkpoint of the bare model includes a pooler. Embeddings do not use it, so it may be random.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = load_as(path, type(model), read_config(path), **options)
        return model

    def load_splits(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source, max_length: int
    ) -> Splits:
        """See `Task.load_splits`. Texts are cut to the folder's own maximum length if that is shorter."""
        max_length = min(max_length, self.longest or max_length)
        require_match(model, tokenizer, max_length)
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
        """Return embeddings of unit length, float32 of shape (examples, hidden)."""
        embeddings = torch.zeros(len(features), model.config.hidden_size)
        with inference(model):
            for chosen, batch in evaluation_batches(self, model, features, batch_size, progress):
                embeddings[chosen] = finite_outputs(self.head, model, batch).float().cpu()
        return embeddings

    def prepare_reference(self, model: PreTrainedModel, features: Sequence[Features]) -> None:
        """Remember the dense model's nearest neighbours; not needed for pairs with scores.

        They are found once for each split, since every member is compared with them. The model's weights and
        the features must not change.
        """
        if "score" in features[0]:
            return
        for dense, texts, neighbours in self._known:
            if dense is model and texts is features:
                self.reference = neighbours
                return
        self.reference = nearest(self.embed(model, features))
        self._known = [*self._known[1 - KNOWN_SPLITS :], (model, features, self.reference)]

    def predict(
        self,
        model: PreTrainedModel,
        features: Sequence[Features],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Predictions:
        """See `Task.predict`. Without scores, call `prepare_reference` with the same features first.

        Returns:
            "cosines" and "scores" of pairs. Without scores, "same", of shape (texts, neighbours): whether
            each neighbour of a text is also its neighbour in the dense model.
        """
        embeddings = self.embed(model, features, batch_size, progress)
        if "score" in features[0]:
            cosines = (embeddings[::2] * embeddings[1::2]).sum(-1).numpy()
            scores = torch.tensor([feature["score"] for feature in features[::2]]).numpy()
            return {"cosines": cosines, "scores": scores}
        own = nearest(embeddings)
        if self.reference is None or self.reference.shape != own.shape:
            raise UsageError(
                "there is no dense model to compare neighbours with",
                "evaluate on pairs with scores, or give --dense MODEL",
            )
        return {"same": (own[:, :, None] == self.reference[:, None, :]).any(-1).numpy()}

    def metrics_of(self, predictions: Predictions) -> dict[str, float]:
        """See `Task.metrics_of`."""
        if "same" in predictions:
            return {"neighbour_overlap": float(torch.from_numpy(predictions["same"]).float().mean())}
        pair = predictions["cosines"], predictions["scores"]
        return finite({"spearman": spearman(*pair), "pearson": pearson(*pair)})

    def copy_extras(self, source: str | Path, target: str | Path) -> None:
        """Write the files that sentence-transformers needs to open the target, with this task's pooling."""
        copy_settings(source, target, self.head.pooling)


@dataclass(frozen=True)
class Sentences:
    """Single texts, or pairs of texts with scores; the two texts of a pair follow each other."""

    texts: list[str]
    scores: list[float]

    def tokenised(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[Features]:
        """Return the tokenised texts; both texts of a pair carry its score."""
        others = {"score": [score for score in self.scores for _ in range(2)]} if self.scores else {}
        return Tokenised(tokenizer, [self.texts], max_length, others).all()


def read_sentences(path: str, source: Source) -> Sentences:
    """Read a file: a ``.txt`` file with one text per line, or a table."""
    if existing(path).suffix.lower() != ".txt":
        return sentences_of(read_table(path), source)
    lines = [line.strip() for line in read_text(path).split("\n")]
    if not any(lines):
        raise UsageError(f"{path} holds no text", "give one sentence per line")
    return Sentences([line for line in lines if line], [])


def sentences_of(table: Table, source: Source) -> Sentences:
    """Return the texts of a table, and their scores if it has two columns of text."""
    label = source.label_column or next((name for name in ("score", "label") if name in table.columns), None)
    columns = text_columns(table, source.text_columns, TEXT_NAMES, label)
    texts = [texts_of(table, column) for column in columns]
    scores = numbers_of(table, label) if label and len(columns) == 2 else []
    return Sentences([text for row in zip(*texts, strict=True) for text in row], scores)


def nearest(embeddings: torch.Tensor) -> torch.Tensor:
    """Return the indices of each text's nearest neighbours by cosine.

    Args:
        embeddings: vectors of unit length, (texts, hidden).

    Returns:
        Indices of other texts, (texts, neighbours): 10 neighbours, or fewer if there are few texts.

    Raises:
        UsageError: if there are fewer than three texts.
    """
    count = min(NEIGHBOURS, (len(embeddings) - 1) // 2)
    if count < 1:
        raise UsageError(f"{len(embeddings)} texts have no neighbours to compare", "give 30 texts or more")
    found = []
    for start in range(0, len(embeddings), ROWS):
        cosines = embeddings[start : start + ROWS] @ embeddings.T  # (rows, texts)
        rows = torch.arange(len(cosines))
        cosines[rows, start + rows] = -torch.inf
        found.append(cosines.topk(count, dim=-1).indices)
    return torch.cat(found)

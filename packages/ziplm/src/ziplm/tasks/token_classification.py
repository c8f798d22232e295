"""Classification of words, such as named entities or parts of speech."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import AutoModelForTokenClassification, PreTrainedModel, PreTrainedTokenizerBase

from ziplm.architectures.tokenizers import load_tokenizer
from ziplm.errors import UsageError
from ziplm.options.source import Source
from ziplm.tasks.base import Features, Predictions, Progress, Splits, Task
from ziplm.tasks.columns import classes_in, label_column, labels_of, model_labels, outputs_of, require_columns
from ziplm.tasks.encoding import Tokenised, encoded, padding_token, require_match
from ziplm.tasks.files import Table, read_table
from ziplm.tasks.finite import finite_outputs
from ziplm.tasks.heads import IGNORED, TokenClassification
from ziplm.tasks.inference import evaluation_batches, inference
from ziplm.tasks.reading import as_is, read_parts

WORD_NAMES = ("tokens", "words")
TAG_NAMES = ("ner_tags", "tags", "labels", "pos_tags", "chunk_tags")
COUNTS = ("right", "words", "found", "wanted", "common")
"""Counts of a sentence: words tagged correctly, words, entities predicted, entities in the data, in both."""


class TokenTask(Task):
    """Predict a tag for every word, judged by F1 over entities and by accuracy over words.

    Only the first token of a word carries its tag. Words beyond the maximum length are cut off and not
    counted.

    Args:
        dataset: dataset on the hub, as ``name`` or ``name:config``, used if no files are given.
    """

    name = "token-classification"
    metric = "f1"
    class_endings = ("ForTokenClassification",)

    def __init__(self, dataset: str | None = None) -> None:
        self.head = TokenClassification()
        self.dataset = dataset

    def load_tokenizer(self, path: str) -> PreTrainedTokenizerBase:
        """See `Task.load_tokenizer`. Words are given separately, so each gets the space before it back."""
        tokenizer = super().load_tokenizer(path)
        if getattr(tokenizer, "add_prefix_space", None) is False:
            tokenizer = load_tokenizer(path, add_prefix_space=True)
        return tokenizer

    def new_head_for(self, source: Source) -> tuple[Any, dict[str, Any]] | None:
        """See `Task.new_head_for`. The classes are the tags of the training data."""
        train, _ = read_parts(self.name, source, read_table, as_is, self.dataset)
        if train is None:
            return None
        column = label_column(train, source.label_column, TAG_NAMES)
        tags = [tag for row in train.columns[column] if isinstance(row, list) for tag in row]
        flat = Table(train.where, {column: tags}, train.classes)
        return AutoModelForTokenClassification, classes_in(flat, column)

    def load_splits(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source, max_length: int
    ) -> Splits:
        """See `Task.load_splits`. Training examples are tokenised on access."""
        require_match(model, tokenizer, max_length)
        if not tokenizer.is_fast:
            raise UsageError("the tokenizer cannot map tokens back to the text", "give a fast tokenizer")
        self.padding_id = padding_token(model, tokenizer)
        train, evaluation = read_parts(self.name, source, read_table, as_is, self.dataset)
        encode = lambda table: self._encode(model, tokenizer, table, source, max_length)  # noqa: E731
        return Splits(
            encode(train) if train is not None else (),
            {name: encode(table).all() for name, table in evaluation.items()},
        )

    def _encode(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        table: Table,
        source: Source,
        max_length: int,
    ) -> "TaggedWords":
        words_name = source.text_columns[0] if source.text_columns else None
        words_name = words_name or next((name for name in WORD_NAMES if name in table.columns), WORD_NAMES[0])
        require_columns(table, [words_name], "the right name with --text-column")
        tags_name = label_column(table, source.label_column, TAG_NAMES)
        rows = list(zip(table.columns[words_name], table.columns[tags_name], strict=True))
        for number, (words, tags) in enumerate(rows, start=1):
            good = isinstance(words, list) and isinstance(tags, list) and len(words) == len(tags) > 0
            if not good or not all(isinstance(word, str) and word.strip() for word in words):
                raise UsageError(
                    f"row {number} of {table.where} does not hold two equally long lists, of words in "
                    f"{words_name!r} and of tags in {tags_name!r}",
                    "give one tag for each word, and no empty words",
                )
        flat = Table(table.where, {tags_name: [tag for _, tags in rows for tag in tags]}, table.classes)
        numbers = iter(labels_of(flat, tags_name, model_labels(model), outputs_of(model)))
        tags_of_rows = [[next(numbers) for _ in tags] for _, tags in rows]
        return TaggedWords(tokenizer, [[words for words, _ in rows]], max_length, {"tags": tags_of_rows})

    def predict(
        self,
        model: PreTrainedModel,
        features: Sequence[Features],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Predictions:
        """See `Task.predict`. Returns the counts of words and of entities in each sentence."""
        tags = {number: name for name, number in model_labels(model).items()}
        counts = {name: np.zeros(len(features), dtype=np.int64) for name in COUNTS}
        with inference(model):
            for chosen, batch in evaluation_batches(self, model, features, batch_size, progress):
                guesses = finite_outputs(self.head, model, batch).argmax(-1).cpu().numpy()  # (batch, tokens)
                for index, guess, label in zip(chosen, guesses, batch["labels"].cpu().numpy(), strict=True):
                    counted = label != IGNORED
                    right = np.sum(guess[counted] == label[counted])
                    own = entities([tags.get(number, "O") for number in guess[counted]])
                    true = entities([tags.get(number, "O") for number in label[counted]])
                    row = (right, np.sum(counted), len(own), len(true), len(own & true))
                    for name, count in zip(COUNTS, row, strict=True):
                        counts[name][index] = count
        return counts

    def metrics_of(self, predictions: Predictions) -> dict[str, float]:
        """See `Task.metrics_of`. All sentences are counted together."""
        right, words, found, wanted, common = (int(predictions[name].sum()) for name in COUNTS)
        f1 = 2 * common / (found + wanted) if common else 0.0
        return {
            "f1": f1,
            "precision": common / max(found, 1),
            "recall": common / max(wanted, 1),
            "accuracy": right / max(words, 1),
        }


class TaggedWords(Tokenised):
    """Lists of words with tags, tokenised on access; the first token of a word carries its label."""

    def __getitems__(self, indices: Sequence[int]) -> list[Features]:
        """Return several examples by index."""
        if not indices:
            return []
        made = encoded(
            self.tokenizer,
            [self.texts[0][index] for index in indices],
            is_split_into_words=True,
            truncation=True,
            max_length=self.max_length,
            return_attention_mask=True,
        )
        return [
            {name: values[position] for name, values in made.items()}
            | {"labels": _aligned(made.word_ids(position), self.others["tags"][index])}
            for position, index in enumerate(indices)
        ]


def _aligned(words: Sequence[int | None], tags: Sequence[Any]) -> list[int]:
    """Return the labels of tokens, given their word indices; only the first token of a word gets its tag."""
    before = [None, *words[:-1]]
    return [
        IGNORED if word is None or word == previous else tags[word]
        for word, previous in zip(words, before, strict=True)
    ]


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return entities as (type, index of the first word, index after the last word).

    As in the evaluation of CoNLL, an I- tag that does not continue an entity of its type starts a new one. A
    tag without B- or I- is an entity of one word; O is no entity.

    Args:
        tags: tags of the words, such as O, B-PER and I-PER.
    """
    found = set()
    kind, begin = None, 0
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-") if tag[:2] in ("B-", "I-") else ("B", "", tag)
        if kind is not None and (prefix == "B" or name != kind):
            found.add((kind, begin, position))
            kind = None
        if kind is None and tag != "O":
            kind, begin = name, position
    return found

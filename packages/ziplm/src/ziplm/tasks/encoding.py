"""Tokenise texts on access, and check that tokenizer and model fit."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.architectures.registry import positions_of
from ziplm.architectures.untrusted import reported
from ziplm.errors import BadCheckpoint, UsageError
from ziplm.tasks.base import Features

PORTION = 1000  # number of texts tokenised in one call


def encoded(tokenizer: PreTrainedTokenizerBase, *texts: Any, **options: Any) -> Any:
    """Return what a tokenizer makes of texts; raise UsageError if it fails, as damaged ones do on some."""
    with reported("the tokenizer fails on a text", "give the model's own tokenizer", UsageError):
        return tokenizer(*texts, verbose=False, **options)


class Examples(Sequence[Features]):
    """Sequence of examples made on access, one at a time or, as by torch's DataLoader, many at once."""

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> list[Features]:
        """Return several examples by index, counted from 0."""

    @overload
    def __getitem__(self, index: int) -> Features: ...
    @overload
    def __getitem__(self, index: slice) -> list[Features]: ...
    def __getitem__(self, index: int | slice) -> Features | list[Features]:
        numbers = range(len(self))[index]
        return self.__getitems__(numbers) if isinstance(numbers, range) else self.__getitems__([numbers])[0]


class Chosen(Examples):
    """Some of the examples of another sequence, in the order of their indices."""

    def __init__(self, examples: Sequence[Features], indices: Sequence[int]) -> None:
        self.examples, self.indices = examples, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitems__(self, indices: Sequence[int]) -> list[Features]:
        """Return several examples by index."""
        wanted = [self.indices[index] for index in indices]
        if isinstance(self.examples, Examples):
            return self.examples.__getitems__(wanted)
        return [self.examples[index] for index in wanted]


class Tokenised(Examples):
    """Texts or pairs of texts that are tokenised on every access.

    No tokens are kept: a large training set takes only the memory of its text, and is ready immediately.
    Tokenising a single example takes 0.2 ms; in a batch it takes a third of that per example, which torch's
    DataLoader uses through ``__getitems__``.

    Args:
        tokenizer: tokenizer of the model.
        texts: one column of texts, or two for pairs.
        max_length: number of tokens after which an example is cut.
        others: further columns, such as labels, that are copied into the examples.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: Sequence[Sequence[str]],
        max_length: int,
        others: Mapping[str, Sequence[Any]],
    ) -> None:
        self.tokenizer, self.texts, self.max_length, self.others = tokenizer, texts, max_length, others

    def __len__(self) -> int:
        return len(self.texts[0])

    def __getitems__(self, indices: Sequence[int]) -> list[Features]:
        """Return several examples by index."""
        if not indices:
            return []
        made = encoded(
            self.tokenizer,
            *[[column[index] for index in indices] for column in self.texts],
            truncation=True,
            max_length=self.max_length,
            return_attention_mask=True,
        )
        return [
            {name: values[position] for name, values in made.items()}
            | {name: values[index] for name, values in self.others.items()}
            for position, index in enumerate(indices)
        ]

    def all(self) -> list[Features]:
        """Return all examples as a list, tokenised once; for data that is evaluated on repeatedly."""
        return [
            features for start in range(0, len(self), PORTION) for features in self[start : start + PORTION]
        ]


def require_match(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int, texts: int = 1
) -> None:
    """Raise UsageError unless the model supports the tokenizer's vocabulary and the maximum length.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        max_length: maximum number of tokens of an example.
        texts: number of texts in an example, 1 or 2.
    """
    sample = encoded(tokenizer, *["a"] * texts)
    # Ids may have gaps, so that the largest says more than their number. Those of special tokens come from a
    # template, which may name others than the vocabulary does.
    tokens = 1 + max([*tokenizer.get_vocab().values(), *sample["input_ids"]], default=-1)
    if tokens > model.config.vocab_size:
        raise UsageError(
            f"the tokenizer has {tokens} tokens, but the model {model.config.vocab_size} embeddings",
            "give the model's own tokenizer",
        )
    kinds = sample.get("token_type_ids", [])
    if max(kinds, default=0) >= getattr(model.config, "type_vocab_size", math.inf):
        raise UsageError(
            f"the tokenizer has token type {max(kinds)}, but the model knows {model.config.type_vocab_size}",
            "give the model's own tokenizer",
        )
    least = tokenizer.num_special_tokens_to_add(pair=texts == 2) + texts
    most = positions_of(model.config)
    if not least <= max_length <= most:
        raise UsageError(
            f"the length {max_length} is not between {least} and the model's {most}",
            "choose another --max-length",
        )


def padding_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token id to pad with.

    The model's own comes first, because some models search their input for it; then the tokenizer's.
    """
    candidates = (model.config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    chosen = next(candidate for candidate in candidates if candidate is not None)
    if type(chosen) is not int or not 0 <= chosen < model.config.vocab_size:
        raise BadCheckpoint(
            f"the padding token is {chosen!r:.40}, but the model knows 0 to {model.config.vocab_size - 1}",
            "correct pad_token_id in config.json",
        )
    return chosen


class Packed(Examples):
    """Examples stored compactly.

    Args:
        numeric: names of the features that are lists of integers; they are stored as int32 arrays.
    """

    def __init__(self, numeric: Sequence[str]) -> None:
        self.numeric = frozenset(numeric)
        self.rows: list[dict[str, Any]] = []

    def append(self, features: Features) -> None:
        """Add an example."""
        self.rows.append(
            {
                name: np.asarray(value, np.int32) if name in self.numeric else value
                for name, value in features.items()
            }
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: Sequence[int]) -> list[Features]:
        """Return several examples by index."""
        return [
            {
                name: value.tolist() if name in self.numeric else value
                for name, value in self.rows[index].items()
            }
            for index in indices
        ]

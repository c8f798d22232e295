"""From text to features, no sooner than they are needed."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.errors import UsageError
from ziplm.tasks.base import Features

PORTION = 1000  # texts tokenised at once


class Examples(Sequence[Features]):
    """Examples that are made when they are asked for, one or, as torch's DataLoader does, many at once."""

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> list[Features]:
        """Several at once, by numbers from 0."""

    @overload
    def __getitem__(self, index: int) -> Features: ...
    @overload
    def __getitem__(self, index: slice) -> list[Features]: ...
    def __getitem__(self, index: int | slice) -> Features | list[Features]:
        numbers = range(len(self))[index]
        return self.__getitems__(numbers) if isinstance(numbers, range) else self.__getitems__([numbers])[0]


class Tokenised(Examples):
    """Texts, or pairs of them, that are tokenised whenever they are asked for.

    Nothing is kept: a large training set costs its text alone, and is ready at once. A single example takes
    0.2 ms and many together a third of that, which torch's DataLoader knows to use (``__getitems__``).
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
        """Several at once."""
        if not indices:
            return []
        encoded = self.tokenizer(
            *[[column[index] for index in indices] for column in self.texts],
            truncation=True,
            max_length=self.max_length,
            return_attention_mask=True,
            verbose=False,
        )
        return [
            {name: values[position] for name, values in encoded.items()}
            | {name: values[index] for name, values in self.others.items()}
            for position, index in enumerate(indices)
        ]

    def all(self) -> list[Features]:
        """All of them, tokenised now and kept: for what is evaluated on again and again."""
        return [
            features for start in range(0, len(self), PORTION) for features in self[start : start + PORTION]
        ]


def check_fit(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int, texts: int = 1
) -> None:
    """Raise unless tokenizer and length go with the model."""
    if len(tokenizer) > model.config.vocab_size:
        raise UsageError(
            f"the tokenizer has {len(tokenizer)} tokens, but the model {model.config.vocab_size}",
            "give the model's own tokenizer",
        )
    least = tokenizer.num_special_tokens_to_add(pair=texts == 2) + texts
    most = model.config.max_position_embeddings
    if not least <= max_length <= most:
        raise UsageError(
            f"the length {max_length} is not between {least} and the model's {most}",
            "choose another --max-length",
        )


def padding_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """What to pad with: the model's own, which some models look for, or else the tokenizer's."""
    candidates = (model.config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(candidate for candidate in candidates if candidate is not None)


class Packed(Examples):
    """Examples kept in little memory: lists of numbers under the given names as int32, all else as it is."""

    def __init__(self, numeric: Sequence[str]) -> None:
        self.numeric = frozenset(numeric)
        self.rows: list[dict[str, Any]] = []

    def append(self, features: Features) -> None:
        """Add one."""
        self.rows.append(
            {
                name: np.asarray(value, np.int32) if name in self.numeric else value
                for name, value in features.items()
            }
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: Sequence[int]) -> list[Features]:
        """Several at once."""
        return [
            {
                name: value.tolist() if name in self.numeric else value
                for name, value in self.rows[index].items()
            }
            for index in indices
        ]

"""Masked language modelling on running text."""

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.errors import UsageError
from ziplm.options.source import Source
from ziplm.tasks.base import Features, Splits
from ziplm.tasks.encoding import Examples, encoded, padding_token, require_match
from ziplm.tasks.heads import IGNORED
from ziplm.tasks.language import LanguageTask, tokens_of
from ziplm.tasks.language_model import LanguageModel

MASKED, RANDOM = 0.8, 0.1  # shares of the chosen tokens that are masked or replaced; the others stay


class MaskedTask(LanguageTask):
    """Predict masked tokens of running text, judged by their perplexity.

    An example is always masked in the same places, so that models are compared on the same tokens.

    Args:
        share: share of the tokens to predict, between 0 and 1.
        seed: seed of the choice of masked tokens.
        dataset: dataset on the hub, as ``name`` or ``name:config``, used if no files are given.
        separator: text inserted between the rows of a table.

    Raises:
        UsageError: if the share is not between 0 and 1.
    """

    name = "masked-lm"
    class_endings = ("ForMaskedLM",)

    def __init__(
        self, share: float = 0.15, seed: int = 0, dataset: str | None = None, separator: str = "\n\n"
    ) -> None:
        if not 0 < share < 1:
            raise UsageError(f"the share of masked tokens is {share}", "give a share between 0 and 1")
        super().__init__(dataset, separator)
        self.share, self.seed = share, seed
        self.head = LanguageModel("masked")

    def load_splits(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source, max_length: int
    ) -> Splits:
        """See `Task.load_splits`. Text is cut into windows of `max_length` tokens, with special tokens."""
        require_match(model, tokenizer, max_length)
        if tokenizer.mask_token_id is None:
            raise UsageError(
                "the tokenizer has no mask token", "give the tokenizer of a masked language model"
            )
        self.padding_id = padding_token(model, tokenizer)
        train, evaluation = self.texts(source)
        window = lambda text: MaskedWindows(tokenizer, text, max_length, self.share, self.seed)  # noqa: E731
        return Splits(
            window(train) if train is not None else (),
            {name: window(text) for name, text in evaluation.items()},
        )


class MaskedWindows(Examples):
    """Windows over running tokens, with special tokens around and masked tokens inside.

    For a given share, the masked tokens depend only on the seed and the number of the window.

    Args:
        tokenizer: tokenizer of the model.
        text: the text.
        length: number of tokens in a window, including special tokens.
        share: share of the tokens to predict.
        seed: seed of the choice of masked tokens.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, text: str, length: int, share: float, seed: int
    ) -> None:
        self.tokens = tokens_of(tokenizer, text)
        self.before, self.after = frame_of(tokenizer)
        self.length = length - len(self.before) - len(self.after)
        self.mask, self.vocabulary = tokenizer.mask_token_id, len(tokenizer)
        self.share, self.seed = share, seed

    def __len__(self) -> int:
        return max(1, len(self.tokens) // self.length)  # an incomplete last window is dropped

    def __getitems__(self, indices: Sequence[int]) -> list[Features]:
        """Return several examples by index."""
        return [self.window(index) for index in indices]

    def window(self, number: int) -> Features:
        """Return the window of this number, masked."""
        tokens = self.tokens[number * self.length :][: self.length]
        generator = np.random.default_rng([self.seed, number])
        chosen = generator.random(len(tokens)) < self.share
        chosen[generator.integers(len(tokens))] |= not chosen.any()  # at least one
        fate = generator.random(len(tokens))
        random = generator.integers(self.vocabulary, size=len(tokens))
        seen = np.where(chosen & (fate < MASKED), self.mask, tokens)
        seen = np.where(chosen & (fate >= MASKED) & (fate < MASKED + RANDOM), random, seen)
        labels = np.where(chosen, tokens, IGNORED).tolist()
        ids = [*self.before, *seen.tolist(), *self.after]
        return {
            "input_ids": ids,
            "attention_mask": [1] * len(ids),
            "labels": [*[IGNORED] * len(self.before), *labels, *[IGNORED] * len(self.after)],
        }


def frame_of(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the ids of the special tokens that the tokenizer puts before and after a text."""
    made = encoded(tokenizer, "a", return_special_tokens_mask=True)
    special, ids = made["special_tokens_mask"], made["input_ids"]
    if 0 not in special:
        raise UsageError("the tokenizer has only special tokens", "give the model's own tokenizer")
    first, last = special.index(0), len(special) - special[::-1].index(0)
    return ids[:first], ids[last:]

"""Language models over running text: masked tokens."""

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.errors import UsageError
from ziplm.heads import IGNORED, LanguageModel
from ziplm.tasks.base import Features, Source, Splits
from ziplm.tasks.encoding import Examples, check_fit, padding_token
from ziplm.tasks.language import LanguageTask, tokens_of

MASKED, RANDOM = 0.8, 0.1  # of the chosen tokens; the others stay


class MaskedTask(LanguageTask):
    """Masked tokens of running text, judged by the perplexity of the masked ones.

    An example is always masked in the same places: models are compared on the same tokens.

    Args:
        share: of the tokens that are to be predicted.
        seed: of what is masked.
        dataset: on the hub, as ``name`` or ``name:config``, used if no files are given.
        separator: what stands between rows of tables.
    """

    name = "masked-lm"
    class_endings = ("ForMaskedLM",)

    def __init__(
        self, share: float = 0.15, seed: int = 0, dataset: str | None = None, separator: str = "\n\n"
    ) -> None:
        if not 0 < share < 1:
            raise UsageError(f"the share of masked tokens is {share}", "give one between 0 and 1")
        super().__init__(dataset, separator)
        self.share, self.seed = share, seed
        self.head = LanguageModel("masked")

    def load_splits(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source, max_length: int
    ) -> Splits:
        """See `Task.load_splits`. Text is cut into windows of `max_length` tokens, special ones included."""
        check_fit(model, tokenizer, max_length)
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
    """Windows into running tokens, framed by special tokens, masked by the window's number and a seed."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, text: str, length: int, share: float, seed: int
    ) -> None:
        self.tokens = tokens_of(tokenizer, text)
        self.before, self.after = frame_of(tokenizer)
        self.length = length - len(self.before) - len(self.after)
        self.mask, self.vocabulary = tokenizer.mask_token_id, len(tokenizer)
        self.share, self.seed = share, seed

    def __len__(self) -> int:
        return max(1, len(self.tokens) // self.length)  # a last part is dropped

    def __getitems__(self, indices: Sequence[int]) -> list[Features]:
        """Several at once."""
        return [self.window(index) for index in indices]

    def window(self, number: int) -> Features:
        """The window of that number, masked."""
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
    """The special tokens before and after a text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    special, ids = encoded["special_tokens_mask"], encoded["input_ids"]
    first, last = special.index(0), len(special) - special[::-1].index(0)
    return ids[:first], ids[last:]

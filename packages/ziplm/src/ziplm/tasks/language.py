"""Language modelling on running text: the base class of such tasks, and prediction of next tokens."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ziplm.architectures.registry import language_head
from ziplm.errors import UsageError
from ziplm.options.source import Source
from ziplm.tasks.base import Features, Predictions, Progress, Splits, Task
from ziplm.tasks.columns import text_columns, texts_of
from ziplm.tasks.encoding import Examples, encoded, padding_token, require_match
from ziplm.tasks.files import Table, existing, read_table, read_text
from ziplm.tasks.finite import finite, finite_outputs
from ziplm.tasks.heads import IGNORED
from ziplm.tasks.inference import evaluation_batches, inference
from ziplm.tasks.language_model import ROWS, LanguageModel
from ziplm.tasks.reading import read_parts

PIECE = 20_000  # number of characters tokenised at a time
PLAIN = (".txt", ".raw", ".tokens")  # WikiText is published with the last two
BOUNDARY = re.compile(r"\s(?=\S)")


class LanguageTask(Task):
    """Base class of the language modelling tasks: reads text and computes perplexity.

    Args:
        dataset: dataset on the hub, as ``name`` or ``name:config``, used if no files are given.
        separator: text inserted between the rows of a table.
    """

    metric = "perplexity"
    greater_is_better = False
    calibration_samples: ClassVar[int] = 512
    labels_beside_teacher: ClassVar[float] = 1.0  # there is more text than a model has learned
    head: LanguageModel

    def __init__(self, dataset: str | None = None, separator: str = "\n\n") -> None:
        self.dataset = dataset
        self.separator = separator

    def texts(self, source: Source) -> tuple[str | None, dict[str, str]]:
        """Read the training text, or None, and the evaluation texts by name of the split.

        Text files are read unchanged; the rows of a table are joined with the separator.
        """

        def join(table: Table) -> str:
            columns = text_columns(table, source.text_columns[:1], (("text",),), None)
            return self.separator.join(texts_of(table, columns[0], allow_empty=True))

        def read(path: str) -> str:
            is_text = existing(path).suffix.lower() in PLAIN
            return read_text(path) if is_text else join(read_table(path))

        return read_parts(self.name, source, read, join, self.dataset)

    def predict(
        self,
        model: PreTrainedModel,
        features: Sequence[Features],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Predictions:
        """See `Task.predict`. Returns the negative log-likelihood and the number of tokens of each window.

        Logits are computed a few rows at a time, because all would take gigabytes.
        """
        losses, tokens = np.zeros(len(features)), np.zeros(len(features), dtype=np.int64)
        with inference(model):
            head = language_head(model)
            for chosen, batch in evaluation_batches(self, model, features, batch_size, progress):
                states = finite_outputs(self.head, model, batch)  # (batch, tokens, hidden)
                labels = batch["labels"]  # (batch, tokens)
                if self.head.kind == "causal":
                    states, labels = states[:, :-1], labels[:, 1:]
                counted = labels != IGNORED
                pairs = zip(states[counted].split(ROWS), labels[counted].split(ROWS), strict=True)
                own = [token_losses(head(rows).float(), wanted) for rows, wanted in pairs]
                windows = np.array(chosen)[counted.nonzero()[:, 0].cpu().numpy()]  # (rows,): index of each
                np.add.at(losses, windows, np.concatenate([np.zeros(0), *own]))
                np.add.at(tokens, windows, 1)
        return {"losses": losses, "tokens": tokens}

    def metrics_of(self, predictions: Predictions) -> dict[str, float]:
        """See `Task.metrics_of`. The loss is the mean over all tokens."""
        mean = math.fsum(predictions["losses"]) / max(int(predictions["tokens"].sum()), 1)
        return finite({"perplexity": math.exp(min(mean, 700.0)), "loss": mean})  # exp(710) overflows


class CausalTask(LanguageTask):
    """Predict the next token of running text, judged by perplexity.

    Args:
        stride: distance, in tokens, between the starts of consecutive evaluation windows. Tokens that an
            earlier window has covered are context only. None: windows do not overlap.
        dataset: dataset on the hub, as ``name`` or ``name:config``, used if no files are given.
        separator: text inserted between the rows of a table.
    """

    name = "causal-lm"
    class_endings = ("LMHeadModel", "ForCausalLM")

    def __init__(
        self, stride: int | None = None, dataset: str | None = None, separator: str = "\n\n"
    ) -> None:
        super().__init__(dataset, separator)
        self.stride = stride
        self.head = LanguageModel("causal")

    def load_splits(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source, max_length: int
    ) -> Splits:
        """See `Task.load_splits`. Text is cut into windows of `max_length` tokens.

        An incomplete last window is dropped from the training text, unless it is the only one.
        """
        require_match(model, tokenizer, max_length)
        stride = max_length if self.stride is None else self.stride
        if not 1 <= stride <= max_length:
            raise UsageError(
                f"the stride {stride} is not between 1 and the length {max_length}", "choose another"
            )
        self.padding_id = padding_token(model, tokenizer)
        train, evaluation = self.texts(source)
        windows: Sequence[Features] = ()
        if train is not None:
            tokens = tokens_of(tokenizer, train)
            whole = len(tokens) // max_length * max_length
            windows = Windows(tokens[: whole or None], max_length, max_length)
        return Splits(
            windows,
            {
                name: Windows(tokens_of(tokenizer, text), max_length, stride)
                for name, text in evaluation.items()
            },
        )


class Windows(Examples):
    """Windows over running tokens, whose starts are `stride` tokens apart.

    A token counts in the first window that contains it. In later windows it is context, with an ignored
    label. This is how transformers documents the perplexity of fixed-length models. The first token of a
    window has no context, so it is never predicted.

    Args:
        tokens: ids of the running tokens, int32 of shape (tokens,).
        length: number of tokens in a window.
        stride: number of tokens between the starts of consecutive windows.
    """

    def __init__(self, tokens: np.ndarray, length: int, stride: int) -> None:
        self.tokens, self.length, self.stride = tokens, length, stride

    def __len__(self) -> int:
        return 1 + max(0, math.ceil((len(self.tokens) - self.length) / self.stride))

    def __getitems__(self, indices: Sequence[int]) -> list[Features]:
        """Return several examples by index."""
        return [self.window(index * self.stride) for index in indices]

    def window(self, begin: int) -> Features:
        """Return the window that begins at the token of this index."""
        ids = self.tokens[begin : begin + self.length].tolist()
        seen = self.length - self.stride if begin else 0
        labels = [IGNORED] * seen + ids[seen:]
        return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels}


def token_losses(logits: torch.Tensor, wanted: torch.Tensor) -> np.ndarray:
    """Return the cross-entropy of each row of logits, float64 of shape (rows,).

    The last row also carries the rounding error of torch's float32 sum over the rows, about 1e-7 of it. The
    rows thus add up to exactly that sum, from which version 0.1 computed perplexities.

    Args:
        logits: float32, (rows, vocabulary).
        wanted: ids of the right tokens, (rows,).
    """
    log_probabilities = logits.log_softmax(-1)
    rows = F.nll_loss(log_probabilities, wanted, reduction="none").double().cpu().numpy()
    total = float(F.nll_loss(log_probabilities, wanted, reduction="sum"))
    rows[-1:] += np.nan_to_num(total - math.fsum(rows))  # an infinite sum has no rounding error
    return rows


def tokens_of(tokenizer: PreTrainedTokenizerBase, text: str) -> np.ndarray:
    """Return the tokens of a long text without special tokens, int32 of shape (tokens,).

    Raises:
        UsageError: if the text has fewer than two tokens.
    """
    pieces = list(pieces_of(text))
    made = encoded(tokenizer, pieces, add_special_tokens=False)["input_ids"] if pieces else []
    tokens = np.concatenate([np.zeros(0, np.int32), *(np.array(ids, np.int32) for ids in made)])
    if len(tokens) < 2:
        raise UsageError(f"a text holds {len(tokens)} tokens", "give at least two, preferably many thousands")
    return tokens


def pieces_of(text: str, size: int = PIECE) -> Iterator[str]:
    """Split a text into pieces that together give the same tokens as the whole text.

    Each piece has at least `size` characters, except the last. Each but the first begins with the last space
    before a word: byte-level tokenizers join exactly that space to the word, and WordPiece ignores it.
    """
    start = 0
    while start < len(text):
        boundary = BOUNDARY.search(text, start + size)
        end = boundary.start() if boundary else len(text)
        yield text[start:end]
        start = end

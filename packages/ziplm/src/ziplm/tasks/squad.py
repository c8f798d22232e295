"""Extractive question answering: SQuAD v1.1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import AutoModelForQuestionAnswering, PreTrainedModel, PreTrainedTokenizerBase

from ziplm.errors import UsageError
from ziplm.options.source import Source
from ziplm.tasks.base import INPUTS, Features, Predictions, Progress, Splits, Task
from ziplm.tasks.columns import require_columns
from ziplm.tasks.encoding import PORTION, Packed, encoded, padding_token, require_match
from ziplm.tasks.files import Table, existing, read_json_records, read_table
from ziplm.tasks.finite import finite_outputs
from ziplm.tasks.heads import Spans
from ziplm.tasks.inference import evaluation_batches, inference
from ziplm.tasks.reading import read_parts
from ziplm.tasks.squad_metrics import best_score, exact_match, f1

HUB = "rajpurkar/squad"
MISPLACED = 0.01  # share of questions that may have an answer which is not found at its answer_start


@dataclass(frozen=True)
class Question:
    """A question on a context, and its answers as pairs of text and index of the first character."""

    question: str
    context: str
    answers: tuple[tuple[str, int], ...]


class SquadTask(Task):
    """Answer questions with a span of a paragraph, judged by F1 over words and exact match, from 0 to 1.

    Args:
        overlap: number of tokens that consecutive windows over a long paragraph share; None is a third of the
            maximum length.
        max_answer: maximum number of tokens of an answer.

    Raises:
        UsageError: if `max_answer` is not positive.
    """

    name = "squad"
    dataset = HUB
    metric = "f1"
    class_endings = ("ForQuestionAnswering",)
    proportions = ("exact_match",)

    def __init__(self, overlap: int | None = None, max_answer: int = 30) -> None:
        if max_answer < 1:
            raise UsageError(f"max_answer is {max_answer}", "give 1 or more")
        self.head = Spans()
        self.overlap = overlap
        self.max_answer = max_answer

    def load_splits(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: Source, max_length: int
    ) -> Splits:
        """See `Task.load_splits`. Long paragraphs become several windows; long questions are cut."""
        require_match(model, tokenizer, max_length, 2)
        if not tokenizer.is_fast:
            raise UsageError("the tokenizer cannot map tokens back to the text", "give a fast tokenizer")
        self.padding_id = padding_token(model, tokenizer)
        train, evaluation = read_parts(self.name, source, read_questions, questions_of, self.dataset)
        return Splits(
            self.windows(tokenizer, train or [], max_length),
            {name: self.windows(tokenizer, asked, max_length) for name, asked in evaluation.items()},
        )

    def new_head(self) -> tuple[Any, dict[str, Any]]:
        """See `Task.new_head`."""
        return AutoModelForQuestionAnswering, {}

    def windows(
        self, tokenizer: PreTrainedTokenizerBase, questions: Sequence[Question], max_length: int
    ) -> Packed:
        """Tokenise questions as windows over their paragraphs.

        Each window holds the question, the positions of the answer if it is inside, and the data for scoring.

        Raises:
            UsageError: if the overlap does not fit `max_length`.
        """
        third = max_length // 3
        overlap = third if self.overlap is None else self.overlap
        room = (
            max_length - third - tokenizer.num_special_tokens_to_add(pair=True)
        )  # minimum number of tokens for the context
        if not 0 <= overlap < room:
            raise UsageError(
                f"windows of {max_length} tokens cannot share {overlap}",
                f"choose an overlap from 0 to {room - 1}, or a larger --max-length",
            )
        packed = Packed((*INPUTS, "offsets"))
        for start in range(0, len(questions), PORTION):
            portion = questions[start : start + PORTION]
            made = encoded(
                tokenizer,
                _shortened(tokenizer, [item.question for item in portion], third),
                [item.context for item in portion],
                truncation="only_second",
                max_length=max_length,
                stride=overlap,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                return_attention_mask=True,
            )
            for row, which in enumerate(made["overflow_to_sample_mapping"]):
                offsets = np.array(made["offset_mapping"][row])  # (tokens, 2): characters
                in_context = [part == 1 for part in made.sequence_ids(row)]
                offsets[np.logical_not(in_context)] = -1
                first, last = _positions(offsets, portion[which])
                packed.append(
                    {name: made[name][row] for name in INPUTS if name in made}
                    | {
                        "offsets": offsets.ravel(),
                        "start_positions": first,
                        "end_positions": last,
                        "question": start + which,
                        "context": portion[which].context,
                        "answers": tuple(text for text, _ in portion[which].answers),
                    }
                )
        return packed

    def predict(
        self,
        model: PreTrainedModel,
        features: Sequence[Features],
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Predictions:
        """See `Task.predict`. Returns F1 and exact match of each question.

        The answer to a question is the best span of all its windows. Questions are in the order in which the
        batches reach them.
        """
        best: dict[int, tuple[float, str, tuple[str, ...]]] = {}
        with inference(model):
            for chosen, batch in evaluation_batches(self, model, features, batch_size, progress):
                logits = finite_outputs(self.head, model, batch).float().cpu().numpy()  # (batch, 2, tokens)
                for index, (starts, ends) in zip(chosen, logits, strict=True):
                    window = features[index]
                    score, answer = self.answer(starts, ends, window)
                    if score > best.setdefault(window["question"], (-np.inf, "", window["answers"]))[0]:
                        best[window["question"]] = (score, answer, window["answers"])
        answered = [(answer, answers) for _, answer, answers in best.values()]
        return {
            "f1": np.array([best_score(f1, *pair) for pair in answered]),
            "exact_match": np.array([best_score(exact_match, *pair) for pair in answered]),
        }

    def metrics_of(self, predictions: Predictions) -> dict[str, float]:
        """See `Task.metrics_of`. Both metrics are means over questions."""
        return {name: float(np.mean(predictions[name])) for name in ("f1", "exact_match")}

    def answer(self, starts: np.ndarray, ends: np.ndarray, window: Features) -> tuple[float, str]:
        """Find the best answer in a window: the span of the context with the largest sum of logits.

        Args:
            starts: start logits, (tokens,).
            ends: end logits, (tokens,).
            window: the example.

        Returns:
            The sum of logits, and the text of the span.
        """
        offsets = np.reshape(window["offsets"], (-1, 2))
        inside = np.flatnonzero(offsets[:, 0] >= 0)
        scores = starts[inside][:, None] + ends[inside][None, :]  # (tokens, tokens): from, to
        places = np.arange(len(inside))
        length = places[None, :] - places[:, None] + 1
        scores = np.where((length > 0) & (length <= self.max_answer), scores, -np.inf)
        first, last = np.unravel_index(np.argmax(scores), scores.shape)
        begin, end = offsets[inside[first], 0], offsets[inside[last], 1]
        return float(scores[first, last]), window["context"][begin:end]


def read_questions(path: str) -> list[Question]:
    """Read questions from the published JSON of SQuAD, or from a table with context, question and answers.

    Raises:
        UsageError: if the file cannot be read, or its questions are malformed.
    """
    file = existing(path)
    if file.suffix.lower() == ".json":
        records = read_json_records(file)
        if any(isinstance(record, dict) and "paragraphs" in record for record in records):
            try:
                rows = [
                    {
                        "context": paragraph["context"],
                        "question": asked["question"],
                        "answers": asked["answers"],
                    }
                    for article in records
                    for paragraph in article["paragraphs"]
                    for asked in paragraph["qas"]
                ]
            except (KeyError, TypeError) as error:
                raise UsageError(
                    f"{path} is not as SQuAD publishes it: {type(error).__name__} {error}",
                    "give paragraphs with context and qas, and qas with question and answers",
                ) from error
            names = ("context", "question", "answers")
            return questions_of(Table(file.name, {name: [row[name] for row in rows] for name in names}))
    return questions_of(read_table(path))


def questions_of(table: Table) -> list[Question]:
    """Return the questions of a table.

    Raises:
        UsageError: if columns are missing, a question is malformed, or more than 1 % of the questions have an
            answer that is not at its answer_start.
    """
    require_columns(table, ("context", "question", "answers"), "columns of these names")
    questions = []
    misplaced = 0
    columns = (table.columns[name] for name in ("question", "context", "answers"))
    for row, (question, context, answers) in enumerate(zip(*columns, strict=True), start=1):
        try:
            pairs = _answer_pairs(answers)
            usable = bool(question.strip() and context.strip() and pairs) and all(
                0 <= start <= len(context) for _, start in pairs
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
            usable = False
        if not usable:
            raise UsageError(
                f"question {row} of {table.where} lacks a text, a context, or answers within it",
                "give every question answers with text and answer_start; remove questions without answers",
            )
        misplaced += any(context[start : start + len(text)] != text for text, start in pairs)
        questions.append(Question(question, context, pairs))
    if not questions:
        raise UsageError(f"{table.where} holds no questions", "give a file with at least one question")
    if misplaced > MISPLACED * len(questions):
        raise UsageError(
            f"{misplaced} of {len(questions)} questions of {table.where} have an answer that is not at its "
            "answer_start",
            "let answer_start count the characters of the context from 0",
        )
    return questions


def _answer_pairs(answers: Any) -> tuple[tuple[str, int], ...]:
    """Return answers as pairs, given a list of objects as published or an object of lists as on the hub."""
    if not isinstance(answers, dict):
        answers = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
    pairs = zip(answers["text"], answers["answer_start"], strict=True)
    return tuple((str(text), int(start)) for text, start in pairs)


def _shortened(tokenizer: PreTrainedTokenizerBase, questions: list[str], most: int) -> list[str]:
    """Cut questions after `most` tokens."""
    made = encoded(tokenizer, questions, add_special_tokens=False, return_offsets_mapping=True)
    return [
        question if len(offsets) <= most else question[: offsets[most - 1][1]]
        for question, offsets in zip(questions, made["offset_mapping"], strict=True)
    ]


def _positions(offsets: np.ndarray, question: Question) -> tuple[int, int]:
    """Return the positions of the first and the last token of the first answer.

    If the window does not contain the answer, both are 0, which is usually the position of a special token.
    """
    text, begin = question.answers[0]
    end = begin + len(text)
    inside = np.flatnonzero(offsets[:, 0] >= 0)
    if offsets[inside[0], 0] > begin or offsets[inside[-1], 1] < end:
        return 0, 0
    first = inside[np.flatnonzero(offsets[inside, 0] <= begin)[-1]]
    last = inside[np.flatnonzero(offsets[inside, 1] >= end)[0]]
    return int(first), int(max(first, last))

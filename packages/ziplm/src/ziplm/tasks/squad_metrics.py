"""Scores of SQuAD v1.1: F1 over words and exact match, both after normalisation."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


def words(answer: str) -> list[str]:
    """Return the words of an answer in lower case, without punctuation and articles."""
    return ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split()


def exact_match(prediction: str, answer: str) -> float:
    """Return 1 if prediction and answer have the same words in the same order, otherwise 0."""
    return float(words(prediction) == words(answer))


def f1(prediction: str, answer: str) -> float:
    """Return the harmonic mean of precision and recall over words, counted with multiplicity."""
    found, wanted = words(prediction), words(answer)
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2 * common / (len(found) + len(wanted)) if common else 0.0


def best_score(score: Callable[[str, str], float], prediction: str, answers: Sequence[str]) -> float:
    """Return the largest score over all reference answers."""
    return max(score(prediction, answer) for answer in answers)

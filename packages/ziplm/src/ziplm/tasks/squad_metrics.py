"""How SQuAD v1.1 scores an answer: words in common, or the same words, after normalisation."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


def words(answer: str) -> list[str]:
    """An answer's words: lower case, no punctuation, no articles."""
    return ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split()


def exact_match(prediction: str, answer: str) -> float:
    """1 if the words are the same."""
    return float(words(prediction) == words(answer))


def f1(prediction: str, answer: str) -> float:
    """The harmonic mean of precision and recall of words, each as often as it occurs."""
    found, wanted = words(prediction), words(answer)
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2 * common / (len(found) + len(wanted)) if common else 0.0


def best_score(score: Callable[[str, str], float], prediction: str, answers: Sequence[str]) -> float:
    """The largest score over all answers that people gave."""
    return max(score(prediction, answer) for answer in answers)

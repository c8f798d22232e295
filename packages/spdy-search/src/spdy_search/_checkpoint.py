"""The JSON file in which a search keeps its evaluations, so that it can be resumed."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ._evaluation import Evaluation
from ._files import replace_text
from ._problem import Problem

FORMAT = 1

Screens: TypeAlias = dict[tuple[tuple[int, ...], float], float]


class CheckpointError(ValueError):
    """Raised when the checkpoint of a search cannot be used: damaged, unreadable, or of another search.

    If the file could not be read, the cause (`__cause__`) is an OSError.
    """


class CheckpointState(NamedTuple):
    """Contents of a checkpoint.

    Attributes:
        evaluations: Full evaluations, in order.
        screens: Result of the screen for each assignment and fraction of the samples.
    """

    evaluations: list[Evaluation]
    screens: Screens


class Checkpoint:
    """A checkpoint file of one search.

    Args:
        path: The file; it need not exist.
        fingerprint: Fingerprint of the search, see `fingerprint`.
        level_counts: Number of levels of each module.

    Raises:
        CheckpointError: If the folder of the file does not exist.
    """

    def __init__(self, path: Path, fingerprint: str, level_counts: Sequence[int]) -> None:
        if not path.parent.is_dir():
            raise CheckpointError(f"the folder of the checkpoint {path} does not exist; create it first")
        self._path = path
        self._fingerprint = fingerprint
        self._level_counts = level_counts

    def read(self) -> CheckpointState:
        """Read the file; without a file, the state is empty.

        Raises:
            CheckpointError: If the file cannot be read, is not a checkpoint, has another format or belongs to
                another search.
        """
        path = self._path
        try:
            if not path.exists():
                return CheckpointState([], {})
            if not path.is_file():  # reading a pipe would wait for a writer
                raise CheckpointError(f"{path} is not a file; choose another one")
            data = path.read_bytes()
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise CheckpointError(f"{path} cannot be read ({reason}); make it readable first") from error
        try:
            content = json.loads(data.decode("utf-8"))
            fingerprint, version = content["fingerprint"], content["format"]
            state = self._decoded(content)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            reason = " ".join(f"{error!s:.100}".split())
            raise CheckpointError(
                f"{path} is not a checkpoint of a search ({reason}); remove it or choose another file"
            ) from None
        if version != FORMAT:
            raise CheckpointError(
                f"{path} has format {version!r:.40}, but this version reads format {FORMAT}; "
                "remove it to start again"
            )
        if fingerprint != self._fingerprint:
            raise CheckpointError(
                f"{path} belongs to a search with another problem, seed, method or starts; "
                "choose another file, or remove this one to start again"
            )
        return state

    def write(self, evaluations: Iterable[Evaluation], screens: Screens) -> None:
        """Replace the file in one step, so that an interruption leaves either the old or the new contents."""
        content = {
            "format": FORMAT,
            "fingerprint": self._fingerprint,
            "evaluations": [[e.levels, _finite_or_none(e.loss), e.seconds] for e in evaluations],
            "screens": [[*key, _finite_or_none(value)] for key, value in screens.items()],
        }
        replace_text(self._path, json.dumps(content))

    def _decoded(self, content: Mapping[str, Any]) -> CheckpointState:
        """Decode the contents of a file; raise ValueError, TypeError, KeyError or OverflowError on damage.

        Of a file of another search, the levels are not checked, since that is what the caller should say.
        """
        counts = self._level_counts if content["fingerprint"] == self._fingerprint else None
        return CheckpointState(
            [
                Evaluation(_levels(levels, counts), _loss(loss), _finite(seconds))
                for levels, loss, seconds in content["evaluations"]
            ],
            {
                (_levels(levels, counts), _finite(fraction)): _loss(value)
                for levels, fraction, value in content["screens"]
            },
        )


def fingerprint(problem: Problem, **settings: Any) -> str:
    """Digest of everything that determines which assignments a search evaluates, except their number."""
    costs = {name: [row.tolist() for row in rows] for name, rows in problem.costs.items()}
    priors = [row.tolist() for row in problem.priors]
    text = json.dumps([costs, priors, problem.budgets, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _levels(values: Any, counts: Sequence[int] | None) -> tuple[int, ...]:
    if not all(type(value) is int and value >= 0 for value in values):
        raise ValueError("its levels are not whole numbers")
    levels = tuple(values)
    if counts is not None and len(levels) != len(counts):
        raise ValueError(f"it has an assignment of {len(levels)} levels for {len(counts)} modules")
    if counts is not None and any(level >= count for level, count in zip(levels, counts, strict=True)):
        raise ValueError("it has a level that does not exist")
    return levels


def _finite(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"it has a {type(value).__name__} in place of a number")
    if not math.isfinite(value):
        raise ValueError(f"it holds the number {value}")
    return float(value)


def _finite_or_none(value: float) -> float | None:
    """A loss for JSON, which has no infinity: None stands for a failure."""
    return value if math.isfinite(value) else None


def _loss(value: Any) -> float:
    """The inverse of `_finite_or_none`, for values of which no other may be infinite."""
    return math.inf if value is None else _finite(value)

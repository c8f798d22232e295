"""The JSON file in which a search keeps its evaluations, so that it can be resumed."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ._evaluation import Evaluation
from ._problem import Problem

FORMAT = 1

Screens: TypeAlias = dict[tuple[tuple[int, ...], float], float]


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

    Raises:
        ValueError: If the folder of the file does not exist.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        if not path.parent.is_dir():
            raise ValueError(f"the folder of the checkpoint {path} does not exist; create it first")
        self._path = path
        self._fingerprint = fingerprint

    def read(self) -> CheckpointState:
        """Read the file; without a file, the state is empty.

        Raises:
            ValueError: If the file is not a checkpoint, has another format or belongs to another search.
        """
        path = self._path
        if not path.exists():
            return CheckpointState([], {})
        if not path.is_file():  # reading a pipe would wait for a writer
            raise ValueError(f"{path} is not a file; choose another one")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            fingerprint, version = content["fingerprint"], content["format"]
            state = _decoded(content)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"{path} is not a checkpoint of a search ({error!s:.100}); remove it or choose another file"
            ) from None
        if version != FORMAT:
            raise ValueError(
                f"{path} has format {version!r:.40}, but this version reads format {FORMAT}; "
                "remove it to start again"
            )
        if fingerprint != self._fingerprint:
            raise ValueError(
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
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(content), encoding="utf-8")
            temporary.replace(self._path)
        finally:
            temporary.unlink(missing_ok=True)  # exists only after an interruption


def fingerprint(problem: Problem, **settings: Any) -> str:
    """Digest of everything that determines which assignments a search evaluates, except their number."""
    costs = {name: [row.tolist() for row in rows] for name, rows in problem.costs.items()}
    priors = [row.tolist() for row in problem.priors]
    text = json.dumps([costs, priors, problem.budgets, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _decoded(content: Mapping[str, Any]) -> CheckpointState:
    """Decode the contents of a file; raise ValueError, TypeError, KeyError or OverflowError on damage."""
    return CheckpointState(
        [
            Evaluation(_levels(levels), _loss(loss), _finite(seconds))
            for levels, loss, seconds in content["evaluations"]
        ],
        {
            (_levels(levels), _finite(fraction)): _loss(value)
            for levels, fraction, value in content["screens"]
        },
    )


def _levels(values: Any) -> tuple[int, ...]:
    if not all(type(value) is int and value >= 0 for value in values):
        raise ValueError("its levels are not whole numbers")
    return tuple(values)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"it holds the number {value}")
    return float(value)


def _finite_or_none(value: float) -> float | None:
    """A loss for JSON, which has no infinity: None stands for a failure."""
    return value if math.isfinite(value) else None


def _loss(value: float | None) -> float:
    """The inverse of `_finite_or_none`, for values of which no other may be infinite."""
    return math.inf if value is None else _finite(value)

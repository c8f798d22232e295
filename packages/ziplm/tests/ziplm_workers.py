"""Uses and misuses of `Workers`, for tests with one process and with two."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from obs_structured import Moments
from torch import nn
from ziplm.errors import UnreachableTarget, ZipLMError
from ziplm.runs.workers import Workers, join

COLLECTIVES: dict[str, Callable[[Workers], Any]] = {
    "gathered": lambda workers: workers.gathered([1]),
    "wait": lambda workers: workers.wait(),
    "add_up": lambda workers: workers.add_up(Moments(2)),
    "spread_weights": lambda workers: workers.spread_weights(nn.Linear(1, 1)),
    "first": lambda workers: workers.first(lambda: 1),
    "led": lambda workers: workers.led(lambda: 1),
    "missing": lambda workers: workers.missing(Path("nothing")),
}
"""The methods at which all processes must meet, each with a call of it."""


def error_of(call: Callable[[], Any]) -> str:
    """Return the type and message of the error that a call raises; an empty text if it raises none."""
    try:
        call()
    except (RuntimeError, ZipLMError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def sum_of_all(workers: Workers) -> int:
    """Let the first process lead three calls in which all processes meet; return the sum of their results."""

    def together(number: int) -> int:
        workers.wait()
        return sum(workers.gathered([number + workers.rank]))

    return workers.led(lambda function: sum(function(number) for number in range(3)), together)


def fail_together(workers: Workers) -> None:
    """Raise an error in a function that the first process leads."""

    def fail(_: int) -> None:
        raise RuntimeError("as planned")

    workers.led(lambda function: function(0), fail)


def fail_to_reach(workers: Workers) -> None:
    """Raise an error of ours in the first process alone."""

    def fail() -> None:
        raise UnreachableTarget("too slow", "as planned")

    workers.first(fail)


def misuse(rank: int, notes: Path) -> None:
    """Call each collective inside `first`, in one of two processes; note the errors, and what works after."""
    workers = join("cpu")
    found: dict[str, Any] = {
        name: error_of(lambda call=call: workers.first(lambda: call(workers)))  # type: ignore[misc]
        for name, call in COLLECTIVES.items()
    }
    found["fail_together"] = error_of(lambda: fail_together(workers))
    found["fail_to_reach"] = error_of(lambda: fail_to_reach(workers))
    found["sum"] = sum_of_all(workers)
    found["ranks"] = workers.gathered([rank])
    notes.mkdir(exist_ok=True)
    (notes / f"{rank}.json").write_text(json.dumps(found))

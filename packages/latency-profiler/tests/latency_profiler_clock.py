"""Fake clock that only advances when work is done, and callables that advance it by known amounts."""

import itertools
from collections.abc import Callable, Iterable


class FakeClock:
    name = "fake"

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def elapsed(self, run: Callable[[], object]) -> float:
        start = self.time
        run()
        return self.time - start

    def work(self, *seconds: float) -> Callable[..., None]:
        """Return a callable that takes these times in turn, cyclically; it ignores its arguments."""
        return self.work_by(itertools.cycle(seconds))

    def work_by(self, seconds: Iterable[float]) -> Callable[..., None]:
        """Return a callable that takes the times of an iterable in turn; it ignores its arguments."""
        times = iter(seconds)

        def run(*args: object) -> None:
            self.time += next(times)

        return run

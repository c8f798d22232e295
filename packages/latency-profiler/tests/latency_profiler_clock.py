"""A clock that stands still until told, and work that moves it by known amounts."""

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
        """A callable that takes these times in turn, over and over; any arguments are ignored."""
        return self.work_by(itertools.cycle(seconds))

    def work_by(self, seconds: Iterable[float]) -> Callable[..., None]:
        """A callable that takes the times of an endless iterable."""
        times = iter(seconds)

        def run(*args: object) -> None:
            self.time += next(times)

        return run

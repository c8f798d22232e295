"""The forecast: how far a run is and how long the rest takes, by estimates that experience corrects."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

TRUST = (
    0.1  # share of the estimated total that must have passed before experience counts as much as estimates
)


@dataclass(frozen=True)
class _Part:
    target: str  # empty for what all targets share
    stage: str
    seconds: float


class Forecast:
    """The planned stages of a run with their estimated seconds, and the position of the run among them.

    Args:
        once: seconds of the stages that all targets share, by name, in the order of the run.
        targets: seconds of the stages of each target, by names of target and stage.
        waiting: wall time divided by estimated time, as long as there is no experience.
    """

    def __init__(
        self, once: Mapping[str, float], targets: Mapping[str, Mapping[str, float]], waiting: float = 1.0
    ) -> None:
        self._parts = [_Part("", stage, seconds) for stage, seconds in once.items()]
        self._parts += [
            _Part(target, stage, seconds)
            for target, stages in targets.items()
            for stage, seconds in stages.items()
        ]
        self._targets = list(targets)
        self._waiting = waiting
        self._target = ""
        self._spent: dict[tuple[str, str], float] = {}

    def begin_target(self, name: str) -> None:
        """Note that a target begins; everything before it is done."""
        self._target = name

    def finish(self, stage: str, seconds: float) -> None:
        """Note that a stage, or a part of it, has taken this many seconds of wall time."""
        key = (self._target, stage)
        self._spent[key] = self._spent.get(key, 0.0) + seconds

    def text(self, stage: str, seconds: float = 0.0) -> str:
        """Describe the position and the time left while a stage is running.

        Args:
            stage: the stage.
            seconds: wall time that it has taken so far.
        """
        places = [stage]
        if self._target in self._targets:
            number = self._targets.index(self._target) + 1
            places.append(f"target {self._target} ({number} of {len(self._targets)})")
        return " · ".join([*places, f"about {duration(self.seconds_left(stage, seconds))} left"])

    @property
    def total(self) -> float:
        """Estimated wall time of everything, corrected by experience."""
        return sum(part.seconds for part in self._parts) * self._rate()

    def seconds_left(self, stage: str, seconds: float = 0.0) -> float:
        """Return the wall time that is left, if a stage is running and has taken some time already."""
        rate, position = self._rate(), self._position(stage)
        spent = self._spent.get((self._target, stage), 0.0) + seconds
        left = sum(part.seconds for part in self._parts[position + 1 :]) * rate
        if position >= 0 and self._parts[position].stage == stage:
            left += max(0.0, self._parts[position].seconds * rate - spent)
        return left

    def _position(self, stage: str) -> int:
        """Return the index of the running part, or of the last part before it; -1 for none."""
        done = -1
        order = {name: number for number, name in enumerate(["", *self._targets])}
        for index, part in enumerate(self._parts):
            key = (part.target, part.stage)
            if key == (self._target, stage):
                return index
            if key in self._spent or order[part.target] < order.get(self._target, 0):
                done = index
        return done

    def _rate(self) -> float:
        """Return wall time over estimated time: the probe's at first, later that of finished parts."""
        estimated = sum(part.seconds for part in self._parts)
        trust = TRUST * estimated
        known = [part for part in self._parts if self._spent.get((part.target, part.stage), 0.0) > 0]
        planned = sum(part.seconds for part in known)
        took = sum(self._spent[part.target, part.stage] for part in known)
        return (self._waiting * trust + took) / (trust + planned) if trust + planned > 0 else self._waiting


@dataclass(frozen=True)
class Position:
    """Where a run is while a stage of it is running.

    Attributes:
        forecast: the forecast of the run.
        stage: the stage.
    """

    forecast: Forecast
    stage: str

    def __call__(self, seconds: float) -> str:
        """Describe the position and the time left after that many seconds of the stage."""
        return self.forecast.text(self.stage, seconds)

    def to_dict(self) -> dict[str, float]:
        """Return the estimated seconds of the stage, and of everything after it, for JSON."""
        later = self.forecast.seconds_left(self.stage, math.inf)
        return {"stage_seconds": self.forecast.seconds_left(self.stage) - later, "later_seconds": later}


def duration(seconds: float) -> str:
    """Format a time as ``45 s``, ``12 min`` or ``2 h 6 min``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"

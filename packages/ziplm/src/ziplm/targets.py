"""Targets: how fast a model must become, or how good it must stay."""

from dataclasses import dataclass
from typing import Literal

from ziplm.config import Config
from ziplm.errors import UsageError
from ziplm.search import Choices


@dataclass(frozen=True)
class Target:
    """One target.

    Attributes:
        kind: "speedup" over the dense model, "latency" in milliseconds, or "recover": the fastest model that
            keeps a share of the metric.
        value: times, milliseconds, or a share.
    """

    kind: Literal["speedup", "latency", "recover"]
    value: float

    @property
    def name(self) -> str:
        """Such as ``2x``, ``5ms``, ``recover0.99``: names a folder."""
        if self.kind == "recover":
            return f"recover{self.value:g}"
        return f"{self.value:g}{'x' if self.kind == 'speedup' else 'ms'}"

    def seconds(self, choices: Choices) -> float:
        """What the whole model may take, on the scale of the table."""
        if self.kind == "latency":
            return self.value / 1e3
        assert self.kind == "speedup"
        return choices.dense_seconds / self.value


def targets_of(config: Config) -> list[Target]:
    """All targets of a run, the slowest first, each once."""
    targets = [
        *(Target("speedup", value) for value in sorted(config.speedup)),
        *(Target("latency", value) for value in sorted(config.latency_ms, reverse=True)),
        *(Target("recover", value) for value in sorted(config.recover, reverse=True)),
    ]
    if not targets:
        raise UsageError("there is no target", "give --speedup, --latency-ms or --recover")
    return list(dict.fromkeys(targets))

"""Targets: how fast or how small a model must become, or how good it must stay."""

from dataclasses import dataclass
from typing import Literal

from ziplm.config import LIMITS, Config
from ziplm.errors import UsageError
from ziplm.search import SECONDS, Choices


@dataclass(frozen=True)
class Target:
    """One target.

    Attributes:
        kind: "speedup" over the dense model, "latency" in milliseconds, "recover" for the fastest model that
            keeps a share of the metric, or "size" for the limits alone.
        value: times, milliseconds, or a share.
        limits: other budgets, by name of the option; all are kept.
    """

    kind: Literal["speedup", "latency", "recover", "size"]
    value: float = 0.0
    limits: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        """Such as ``2x``, ``5ms``, ``recover0.99``, ``sparsity0.5``, ``2x-params5e+06``: names a folder."""
        speed = {
            "speedup": f"{self.value:g}x",
            "latency": f"{self.value:g}ms",
            "recover": f"recover{self.value:g}",
        }.get(self.kind)
        return "-".join([*([speed] if speed else []), *(f"{name}{value:g}" for name, value in self.limits)])

    def budgets(self, choices: Choices, dense: Choices | None = None) -> dict[str, float]:
        """By name of the cost, for `Choices.problem`; sparsity is that of `dense`, if it is another model."""
        budgets = {}
        if self.kind == "latency":
            budgets[SECONDS] = self.value / 1e3
        elif self.kind == "speedup":
            budgets[SECONDS] = choices.dense_seconds / self.value
        whole = sum(max(row) for row in (dense or choices).costs["params"])
        for name, value in self.limits:
            cost, budget = ("params", (1 - value) * whole) if name == "sparsity" else (name, value)
            budgets[cost] = min(budget, budgets.get(cost, budget))
        return budgets


def targets_of(config: Config) -> list[Target]:
    """All targets of a run, the slowest first, each once.

    Limits of size go with every speed that is asked for; without one they are targets themselves.
    """
    limits = {name: getattr(config, name) for name in LIMITS if getattr(config, name)}
    several = [name for name, values in limits.items() if len(values) > 1]
    if several and (len(limits) > 1 or config.speedup or config.latency_ms or config.recover):
        raise UsageError(
            f"there are several values of {several[0]} beside other targets",
            "give one, or make a run for each",
        )
    common = tuple((name, values[0]) for name, values in limits.items())
    targets = [
        *(Target("speedup", value, common) for value in sorted(config.speedup)),
        *(Target("latency", value, common) for value in sorted(config.latency_ms, reverse=True)),
        *(Target("recover", value, common) for value in sorted(config.recover, reverse=True)),
    ]
    if not targets and several:
        largest_first = sorted(limits[several[0]], reverse=several[0] != "sparsity")
        targets = [Target("size", 0.0, ((several[0], value),)) for value in largest_first]
    elif not targets and common:
        targets = [Target("size", 0.0, common)]
    if not targets:
        raise UsageError("there is no target", "give --speedup, --latency-ms, --recover or a limit of size")
    targets = list(dict.fromkeys(targets))
    names = [target.name for target in targets]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two targets are so near that both are {twice[0]}", "leave one out")
    return targets

"""Targets: how fast or small a model must become, or how much of its metric it must keep."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ziplm.errors import UsageError

Kind = Literal["speedup", "latency", "recover", "size"]
Values = tuple[float, ...]
Limits = tuple[tuple[str, float], ...]
"""Limits of size, by name of the option."""


@dataclass(frozen=True)
class Target:
    """One target.

    Attributes:
        kind: "speedup" over the dense model, "latency" in milliseconds, "recover" for the fastest model that
            keeps a share of the metric, or "size" for limits alone.
        value: a factor, milliseconds, or a share, depending on the kind.
        limits: limits of size that hold as well.
    """

    kind: Kind
    value: float = 0.0
    limits: Limits = ()

    @property
    def name(self) -> str:
        """Name of the target and of its folder: ``2x``, ``5ms``, ``recover0.99``, ``2x-params5e+06``."""
        speed = {
            "speedup": f"{self.value:g}x",
            "latency": f"{self.value:g}ms",
            "recover": f"recover{self.value:g}",
        }.get(self.kind)
        return "-".join([*([speed] if speed else []), *(f"{name}{value:g}" for name, value in self.limits)])


def make_targets(speeds: Mapping[Kind, Values], limits: Mapping[str, Values]) -> list[Target]:
    """Return all targets of a run without duplicates, kind by kind, the slowest of each kind first.

    Args:
        speeds: values of the targets of each kind.
        limits: limits of size by name. They apply to every speed; without one, they are targets themselves.

    Raises:
        UsageError: if there is no target, if several limits are combined with other targets, or if two
            targets have the same name.
    """
    limits = {name: values for name, values in limits.items() if values}
    several = [name for name, values in limits.items() if len(values) > 1]
    common = tuple((name, values[0]) for name, values in limits.items())
    # A larger factor is faster; fewer milliseconds, and a smaller share of the metric, are faster as well.
    targets = [
        Target(kind, value, common)
        for kind, values in speeds.items()
        for value in sorted(values, reverse=kind != "speedup")
    ]
    if several and (len(limits) > 1 or targets):
        raise UsageError(
            f"there are several values of {several[0]} beside other targets",
            "give one, or make a run for each",
        )
    if not targets and several:
        targets = _size_targets(several[0], limits[several[0]])
    elif not targets and common:
        targets = [Target("size", 0.0, common)]
    if not targets:
        raise UsageError("there is no target", "give --speedup, --latency-ms, --recover or a limit of size")
    return _distinct(targets)


def _size_targets(name: str, values: Values) -> list[Target]:
    """Return one target for each value of a limit, the largest model first."""
    largest_first = sorted(values, reverse=name != "sparsity")
    return [Target("size", 0.0, ((name, value),)) for value in largest_first]


def _distinct(targets: list[Target]) -> list[Target]:
    targets = list(dict.fromkeys(targets))
    names = [target.name for target in targets]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two targets are so close that both are named {twice[0]}", "leave one out")
    return targets

"""A clock without noise, which counts the multiplications of matrix products."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from latency_profiler import CpuClock, _rounds, _statistics
from torch.utils._python_dispatch import TorchDispatchMode


class Products(TorchDispatchMode):
    """Counts the multiplications of matrix products."""

    factors: ClassVar = {
        "aten::mm": 0,
        "aten::bmm": 0,
        "aten::matmul": 0,
        "aten::linear": 0,
        "aten::addmm": 1,
    }
    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        if (factor := self.factors.get(function._schema.name)) is not None:
            self.count += output.numel() * args[factor].shape[-1]
        return output


def count_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock named cpu count multiplications; counts have no noise, so one round is enough."""

    def elapsed(_: CpuClock, run: Callable[[], object]) -> float:
        with Products() as counter:
            run()
        return counter.count / 1e6

    monkeypatch.setattr(CpuClock, "elapsed", elapsed)
    monkeypatch.setattr(CpuClock, "watch", lambda _: lambda: 0.0)  # counts do not depend on other processes
    settings = {"SHORTEST_SAMPLE": 0.0, "WARM_UP_CALLS": 0, "MOST_REPEATS": 1, "FEWEST_ROUNDS": 1}
    for name, value in settings.items():
        monkeypatch.setattr(_rounds, name, value)
    monkeypatch.setattr(_statistics, "RESAMPLES", 2)

"""Real clocks, tested without relying on exact times, and the order of device events."""

import time

import pytest
import torch
from latency_profiler import CpuClock, DeviceClock, OptionError, WallClock
from latency_profiler._clock import resolve_clock


def test_sleep_takes_wall_time_and_no_cpu_time() -> None:
    assert WallClock().elapsed(lambda: time.sleep(0.05)) >= 0.05
    assert CpuClock().elapsed(lambda: time.sleep(0.05)) < 0.05


def test_clock_names_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert type(resolve_clock("wall", cpu)) is WallClock
    assert type(resolve_clock("cpu", cpu)) is CpuClock
    assert type(resolve_clock("wall", cuda)) is DeviceClock
    with pytest.raises(OptionError, match="clock 'cpu' cannot time work on cuda; use clock='wall'"):
        resolve_clock("cpu", cuda)


def test_device_is_synchronised_before_and_after_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    device = torch.device("cuda", 1)

    class Event:
        made = 0

        def __init__(self, device: torch.device, enable_timing: bool) -> None:
            assert (device.index, enable_timing) == (1, True)
            Event.made += 1
            self.name = f"event {Event.made}"

        def record(self, stream: str) -> None:
            log.append(f"{self.name} recorded on {stream}")

        def synchronize(self) -> None:
            log.append(f"{self.name} reached")

        def elapsed_time(self, end: "Event") -> float:
            assert (self.name, end.name) == ("event 1", "event 2")
            return 250.0

    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: log.append(f"{device} idle"))
    assert DeviceClock(device).elapsed(lambda: log.append("work")) == 0.25
    assert log == [
        "cuda:1 idle",
        "event 1 recorded on stream of cuda:1",
        "work",
        "event 2 recorded on stream of cuda:1",
        "event 2 reached",
    ]

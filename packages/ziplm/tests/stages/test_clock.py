"""The clock is wall time, except on a busy machine where CPU time can be trusted."""

import math
from dataclasses import replace

import pytest
import torch
from ziplm.options.kinds import Clock
from ziplm.options.setting import Setting
from ziplm.stages.clock import MOST_WAITING, Probe, choose_clock, probe_machine

QUIET = Probe(waiting=1.01, load=0.8, cores=2)
CROWDED = Probe(waiting=1.01, load=2.9, cores=2)
DISTURBED = Probe(waiting=1.4, load=0.8, cores=2)


@pytest.mark.parametrize("probe", [CROWDED, DISTURBED, Probe(1.4, None, 1), replace(CROWDED, waiting=2.0)])
def test_a_machine_is_busy_if_processes_outnumber_cores_or_the_probe_waited(probe: Probe) -> None:
    assert probe.busy


@pytest.mark.parametrize(
    "probe", [QUIET, Probe(1.0, None, 1), Probe(MOST_WAITING, 2.5, 2), Probe(0.99, 0, 1)]
)
def test_a_machine_is_quiet_otherwise(probe: Probe) -> None:
    assert not probe.busy


@pytest.mark.parametrize("clock", ["wall", "cpu"])
@pytest.mark.parametrize("probe", [QUIET, CROWDED, DISTURBED])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_clock_that_was_asked_for_is_kept(clock: Clock, probe: Probe, threads: int, device: str) -> None:
    setting = Setting(clock=clock, threads=threads, device=device)
    assert choose_clock(setting, probe) == (setting, f"clock: {clock}, as asked")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_a_quiet_machine_is_measured_in_wall_time(threads: int, device: str) -> None:
    setting = Setting(clock="auto", threads=threads, device=device)
    chosen, reason = choose_clock(setting, QUIET)
    assert chosen == replace(setting, clock="wall")
    assert reason == "clock: wall time (load 0.8 on 2 cores)"


@pytest.mark.parametrize("probe", [CROWDED, DISTURBED])
@pytest.mark.parametrize(
    ("threads", "device", "clock", "hint"),
    [
        (1, "cpu", "cpu", ""),
        (2, "cpu", "wall", "; --threads 1 would allow CPU time"),
        (1, "cuda", "wall", ""),
        (2, "cuda:0", "wall", ""),
    ],
)
def test_a_busy_machine_is_measured_in_cpu_time_if_one_thread_of_it_is(
    probe: Probe, threads: int, device: str, clock: Clock, hint: str
) -> None:
    setting = Setting(clock="auto", threads=threads, device=device)
    chosen, reason = choose_clock(setting, probe)
    assert chosen == replace(setting, clock=clock)
    start = {"cpu": "clock: CPU time, since", "wall": "clock: wall time, although"}[clock]
    assert reason == f"{start} the machine is busy ({probe}){hint}"


@pytest.mark.parametrize(("threads", "clock"), [(1, "cpu"), (4, "wall")])
def test_torchs_own_number_of_threads_counts_if_none_is_given(
    monkeypatch: pytest.MonkeyPatch, threads: int, clock: Clock
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert choose_clock(Setting(clock="auto"), CROWDED)[0].clock == clock


def test_a_probe_that_did_not_wait_says_so() -> None:
    assert str(Probe(0.9999, None, 3)) == "load unknown on 3 cores"
    assert str(Probe(1.5, 1.0, 2)) == "load 1.0 on 2 cores, a probe took 50% longer than its CPU time"


def test_probing_returns_finite_values_and_keeps_the_number_of_threads() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        probe = probe_machine(0.05)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert 0.99 <= probe.waiting < math.inf  # CPU time of one thread cannot pass faster than wall time
    assert probe.load is None or 0 <= probe.load < math.inf
    assert probe.cores >= 1

"""OpenVINO on CPUs that announce instructions they do not allow; their test processes are simulated."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping

import pytest
from latency_profiler import (
    EngineError,
    Environment,
    OpenVinoEngine,
    _cpu,
    _probe,
    has_int8_instructions,
    int8_note,
)
from latency_profiler._probe import ISA_VARIABLE, choose_instructions

TRAPPING = frozenset({"fpu", "avx2", "avx512_vnni", "amx_tile", "amx_int8"})


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known of this process yet, and what a test finds out is forgotten."""
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "openvino", raising=False)
    choose_instructions.cache_clear()
    yield
    choose_instructions.cache_clear()


def simulate(
    monkeypatch: pytest.MonkeyPatch, flags: frozenset[str], *working: str | None
) -> list[str | None]:
    """Simulate a CPU on which OpenVINO works only with these limits; return the list of limits tried."""
    tried: list[str | None] = []

    def works(precision: str, variables: Mapping[str, str]) -> bool:
        tried.append({**os.environ, **variables}.get(ISA_VARIABLE))
        return tried[-1] in working

    monkeypatch.setattr(_probe, "cpu_flags", lambda: flags)
    monkeypatch.setattr(_probe, "_works", works)
    return tried


def test_safe_setting_is_found_before_openvino_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = simulate(monkeypatch, TRAPPING, "AVX512_CORE_VNNI", "AVX2")
    with caplog.at_level(logging.WARNING):
        assert choose_instructions("f32") == "AVX512_CORE_VNNI"
        assert choose_instructions("f32") == "AVX512_CORE_VNNI"
    assert tried == [None, "AVX512_CORE_VNNI"]  # once per process
    assert os.environ[ISA_VARIABLE] == "AVX512_CORE_VNNI"
    (message,) = caplog.messages
    assert message.endswith("does not allow; OpenVINO is limited to AVX512_CORE_VNNI (ONEDNN_MAX_CPU_ISA).")
    environment = Environment.current(engine=OpenVinoEngine())
    assert environment.details == {ISA_VARIABLE: "AVX512_CORE_VNNI"}


def test_setting_of_the_user_is_kept_if_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "AVX2")
    tried = simulate(monkeypatch, TRAPPING, "AVX2")
    assert choose_instructions("f32") == "AVX2"
    assert tried == ["AVX2"]


def test_cpu_that_works_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = simulate(monkeypatch, TRAPPING, None)
    assert choose_instructions("f32") is None
    assert ISA_VARIABLE not in os.environ
    assert tried == [None]


def test_older_cpus_are_not_tested_and_unknown_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert simulate(monkeypatch, frozenset({"avx2", "avx512_vnni"})) == []
    assert choose_instructions("f32") is None
    choose_instructions.cache_clear()
    tried = simulate(monkeypatch, frozenset(), None)
    assert choose_instructions("f32") is None
    assert tried == [None]


def test_process_is_refused_rather_than_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, TRAPPING, "AVX2")
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(EngineError, match="set ONEDNN_MAX_CPU_ISA=AVX2 before starting Python"):
        choose_instructions("f32")
    simulate(monkeypatch, TRAPPING)
    with pytest.raises(EngineError, match="does not work on this CPU: test processes fail; use the engine"):
        choose_instructions("bf16")


def test_test_process_computes_and_its_death_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _probe._works("f32", {ISA_VARIABLE: "AVX2"})
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    monkeypatch.setattr(_probe, "_PROGRAM", killed)
    assert not _probe._works("f32", {})
    monkeypatch.setattr(_probe, "_PROGRAM", "import time; time.sleep(60)")
    monkeypatch.setattr(_probe, "PROBE_SECONDS", 0.2)
    assert not _probe._works("f32", {})


@pytest.mark.parametrize(
    ("flags", "answer"),
    [
        ({"avx2", "avx512_vnni"}, True),
        ({"avx2", "avx_vnni"}, True),
        ({"amx_int8"}, True),
        ({"asimd", "asimddp"}, True),
        ({"avx2", "avx512f"}, False),
    ],
)
def test_int8_instructions_are_recognised(
    flags: set[str], answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cpu, "cpu_flags", lambda: frozenset(flags))
    assert has_int8_instructions() is answer
    assert int8_note().startswith("This CPU has no instructions for int8 dot products") is not answer

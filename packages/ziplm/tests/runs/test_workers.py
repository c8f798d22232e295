"""Processes divide the work, and a meeting that only one of them would attend raises an error at once."""

from pathlib import Path

import pytest
import torch
from ziplm import UsageError
from ziplm.runs.workers import ALONE, Workers, join
from ziplm_several import in_two_processes, notes_in
from ziplm_workers import COLLECTIVES, error_of, fail_together, misuse, sum_of_all

MESSAGE = "was called by the first process alone, inside `first` or `led`; all processes must meet there"


def test_every_item_belongs_to_exactly_one_process() -> None:
    shares = [Workers(rank, 3).share(range(7)) for rank in range(3)]
    assert shares == [[0, 3, 6], [1, 4], [2, 5]]
    assert [[n for n in range(7) if Workers(rank, 3).owns(n)] for rank in range(3)] == shares
    assert ALONE.gathered(ALONE.share(range(7))) == list(range(7))


def test_devices_that_cannot_be_shared_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert join("cuda:1") == ALONE
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(UsageError, match=r"device is cuda:1 with 2 processes; use cpu, or cuda"):
        join("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="process 1 finds 1 GPUs; start at most 1"):
        join("cuda")


@pytest.mark.parametrize("method", COLLECTIVES)
def test_a_meeting_inside_first_raises_even_with_one_process(method: str) -> None:
    """A mistake that would hang two processes shows in every run of one."""
    workers, call = Workers(), COLLECTIVES[method]
    with pytest.raises(RuntimeError, match=MESSAGE) as caught:
        workers.first(lambda: call(workers))
    named = {"first": "first or led", "led": "first or led", "missing": "first or led"}
    assert str(caught.value).startswith(f"Workers.{named.get(method, method)} was called")
    with pytest.raises(RuntimeError, match=MESSAGE):
        workers.led(lambda function: call(workers), lambda argument: argument)
    call(workers)  # allowed again after the errors


def test_processes_may_meet_in_the_functions_of_led() -> None:
    assert sum_of_all(Workers()) == 0 + 1 + 2


def test_after_a_function_of_led_the_first_process_is_alone_again() -> None:
    workers = Workers()

    def lead(function: object) -> None:
        assert callable(function)
        assert function(1) == [1]
        workers.wait()

    with pytest.raises(RuntimeError, match=MESSAGE):
        workers.led(lead, lambda argument: workers.gathered([argument]))


def test_after_an_error_all_methods_work() -> None:
    workers = Workers()

    def fail() -> None:
        raise ValueError("as planned")

    with pytest.raises(ValueError, match="as planned"):
        workers.first(fail)
    assert error_of(lambda: fail_together(workers)) == "RuntimeError: as planned"
    for call in COLLECTIVES.values():
        call(workers)


def test_a_meeting_inside_first_ends_in_two_processes_without_waiting(tmp_path: Path) -> None:
    """The first process raises the error and tells the other one, and both can meet afterwards."""
    assert in_two_processes(misuse, tmp_path / "notes", seconds=120) == [0, 0]
    first, second = notes_in(tmp_path / "notes")
    for method in COLLECTIVES:
        assert first[method].startswith("RuntimeError: Workers."), method
        assert MESSAGE in first[method]
        assert second[method].startswith("ZipLMError: the first process failed: Workers."), method
        assert MESSAGE in second[method]
    # An error of ours is of the same class in all processes, which handle it alike.
    assert first["fail_to_reach"] == "UnreachableTarget: too slow; as planned"
    assert second["fail_to_reach"].startswith("UnreachableTarget: the first process failed: too slow")
    for notes in (first, second):
        assert notes["fail_together"] == "RuntimeError: as planned"
        assert notes["sum"] == 3 * 1 + 2 * (0 + 1 + 2)
        assert notes["ranks"] == [0, 1]

"""Damaged checkpoints, and arguments that are huge or of the wrong type: only our own errors, on one line."""

import json
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
from spdy_problems import latency_problem
from spdy_search import CheckpointError, Problem, fit_budget, search, solve, solve_batch, solve_bounded

PROBLEM = latency_problem(6, 2, seed=3)
LEVELS = solve(PROBLEM).tolist()


def loss(levels):
    return float(sum(levels))


def refused(call, error=ValueError):
    """The message of the error that a call must raise, which must be short and on one line."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "search.json"
    search(PROBLEM, loss, 3, checkpoint=path)
    return path


@pytest.mark.parametrize(
    "changed",
    [
        {"evaluations": [[LEVELS[:-1], 1.0, 0.0]]},
        {"evaluations": [[[*LEVELS, 0], 1.0, 0.0]]},
        {"evaluations": [[[10**400, *LEVELS[1:]], 1.0, 0.0]]},
        {"evaluations": [[[99, *LEVELS[1:]], 1.0, 0.0]]},
        {"evaluations": [[[True, *LEVELS[1:]], 1.0, 0.0]]},
        {"evaluations": [[{}, 1.0, 0.0]]},
        {"evaluations": [["", 1.0, 0.0]]},
        {"evaluations": [[LEVELS, "1", 0.0]]},
        {"evaluations": [[LEVELS, True, 0.0]]},
        {"evaluations": [[LEVELS, math.nan, 0.0]]},
        {"evaluations": [[LEVELS, 1.0, None]]},
        {"evaluations": [[LEVELS, 1.0]]},
        {"evaluations": {"\ud800": 1}},
        {"evaluations": "\ud800\n"},
        {"screens": None},
        {"screens": [[LEVELS, math.inf, 1.0]]},
        {"screens": [[LEVELS[:2], 0.5, 1.0]]},
        {"format": "\ud800\n" * 1000},
        {"format": [[1]]},
        {"fingerprint": "\ud800"},
        {"fingerprint": 10**400},
    ],
)
def test_damaged_contents_are_refused(checkpoint, changed):
    checkpoint.write_text(json.dumps({**json.loads(checkpoint.read_text()), **changed}))
    message = refused(lambda: search(PROBLEM, loss, 6, checkpoint=checkpoint), CheckpointError)
    assert message.startswith(str(checkpoint))
    message.encode()  # no half of a surrogate pair


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[" * 10**5,
        b'{"a":' * 10**5,
        b"1" * 5000,
        b'"\\ud800"',
        b"NaN",
        b"null",
        b"\0" * 100,
    ],
)
def test_bytes_that_are_no_checkpoint_are_refused(checkpoint, data):
    checkpoint.write_bytes(data)
    message = refused(lambda: search(PROBLEM, loss, 6, checkpoint=checkpoint), CheckpointError)
    assert "is not a checkpoint of a search" in message


@pytest.mark.parametrize("step", ["exists", "read_bytes"])
def test_a_file_that_cannot_be_read_is_not_called_damaged(checkpoint, monkeypatch, step):
    def denied(path, *arguments, **keywords):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, step, denied)
    with pytest.raises(CheckpointError, match=r"search\.json cannot be read \(Permission denied\)") as caught:
        search(PROBLEM, loss, 6, checkpoint=checkpoint)
    assert isinstance(caught.value.__cause__, PermissionError)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="finds the names of open files in /proc")
def test_a_checkpoint_is_durable_and_its_temporary_name_is_ours(tmp_path, monkeypatch):
    synced, renamed = [], []
    fsync, replace = os.fsync, Path.replace

    def recording_fsync(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def recording_replace(source, target):
        renamed.append(source.name)
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(Path, "replace", recording_replace)
    search(PROBLEM, loss, 2, checkpoint=tmp_path / "search.json")
    assert synced == [
        renamed[0],
        tmp_path.name,
        renamed[1],
        tmp_path.name,
    ]  # the file before, the folder after
    assert len(set(renamed)) == 2
    assert all(re.fullmatch(r"\.search\.json\.[0-9a-f]{32}\.ziplm-partial", name) for name in renamed)
    assert [file.name for file in tmp_path.iterdir()] == ["search.json"]


def test_a_full_disk_keeps_the_old_checkpoint(checkpoint, monkeypatch):
    before = checkpoint.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        search(PROBLEM, loss, 6, checkpoint=checkpoint)
    assert checkpoint.read_bytes() == before
    assert [file.name for file in checkpoint.parent.iterdir()] == ["search.json"]


HUGE = 10**5000  # more digits than Python prints


def kind_of(value):
    return f"{type(value).__name__} of {value.bit_length()} bits" if isinstance(value, int) else repr(value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1.5, "3", None, [1], -HUGE, 0], ids=kind_of)
@pytest.mark.parametrize("name", ["evaluations", "patience", "rounds", "effort"])
def test_counts_are_whole_numbers(name, bad):
    calls = {
        "evaluations": lambda: search(PROBLEM, loss, bad),
        "patience": lambda: search(PROBLEM, loss, 3, patience=bad),
        "rounds": lambda: fit_budget(PROBLEM, LEVELS, PROBLEM.cost, PROBLEM.budget, bad),
        "effort": lambda: solve_bounded(PROBLEM, effort=bad),
    }
    if name == "patience" and bad is None:
        calls[name]()  # the default
        return
    assert refused(calls[name]).startswith(f"{name} must be")


@pytest.mark.parametrize("bad", [math.nan, 1.5, "3", None, -1])
def test_a_seed_is_a_whole_number(bad):
    assert refused(lambda: search(PROBLEM, loss, 3, seed=bad)).startswith("seed must be")
    assert search(PROBLEM, loss, 3, seed=10**400).evaluations == 3


@pytest.mark.parametrize("bad", [HUGE, math.nan, math.inf, "x", None, [1, 2]], ids=kind_of)
def test_targets_and_tolerances_are_finite_numbers(bad):
    for keywords in ({"target": bad}, {"tolerance": bad}, {"fixed": bad}):
        if keywords.get("fixed", 0) is None:
            continue  # the default
        given = {"target": PROBLEM.budget, **keywords}
        message = refused(lambda given=given: fit_budget(PROBLEM, LEVELS, PROBLEM.cost, **given))
        assert message.startswith(next(iter(keywords)))


@pytest.mark.parametrize("bad", [[HUGE] * 6, ["a"] * 6, [[1], [2, 3]], object(), [math.nan] * 6, [-1.0] * 6])
def test_weights_are_finite_numbers(bad):
    for call in (solve, solve_bounded, solve_batch):
        assert "weights must be" in refused(lambda call=call: call(PROBLEM, bad))


def test_weights_may_be_as_large_as_a_float_allows():
    large = np.full(6, 1e308)
    assert np.array_equal(solve(PROBLEM, large), solve(PROBLEM))
    wide = Problem(PROBLEM.costs["cost"], [1e3 * row for row in PROBLEM.priors], PROBLEM.budget)
    assert "more than a float can hold" in refused(lambda: solve_bounded(wide, large))
    assert np.array_equal(solve(wide, large), solve(PROBLEM))


@pytest.mark.parametrize("bad", [[HUGE] * 6, [[0], [0, 1]], "abc", None, [math.nan] * 6])
def test_assignments_are_levels_of_the_problem(bad):
    assert refused(lambda: PROBLEM.fits(bad))
    assert refused(lambda: fit_budget(PROBLEM, bad, PROBLEM.cost, PROBLEM.budget))
    assert refused(lambda: search(PROBLEM, loss, 3, starts=[bad]))

"""Interrupted searches, and the checkpoints from which they resume."""

import itertools
import json
import math
import os

import numpy as np
import pytest
from spdy_problems import hidden_loss, latency_problem
from spdy_search import Problem, search, solve


@pytest.mark.parametrize("after", [0, 7])
def test_ctrl_c_returns_the_best_so_far(after):
    problem = latency_problem(10, 2, seed=3)
    plain = hidden_loss(problem, 3, "weights")
    calls = itertools.count()

    def loss(levels):
        if next(calls) == after:
            raise KeyboardInterrupt
        return plain(levels)

    result = search(problem, loss, evaluations=40)
    assert result.interrupted
    assert result.evaluations == after
    assert result.loss == (search(problem, plain, evaluations=after).loss if after else math.inf)
    assert problem.fits(result.levels)


@pytest.mark.parametrize("place", ["screen", "callback", "write"])
def test_ctrl_c_anywhere_keeps_all_evaluations(tmp_path, monkeypatch, place):
    problem = latency_problem(8, 2, seed=3)
    plain = hidden_loss(problem, 3, "weights")
    asked = []

    def interrupt(*arguments):
        if len(asked) == 3:
            raise KeyboardInterrupt

    def loss(levels):
        asked.append(tuple(levels.tolist()))
        if place == "write" and len(asked) == 3:
            monkeypatch.setattr(json, "dumps", interrupt)
        return plain(levels)

    def screen(levels, fraction):
        interrupt()
        return plain(levels)

    result = search(
        problem,
        loss,
        screen=screen if place == "screen" else None,
        callback=interrupt if place == "callback" else None,
        checkpoint=tmp_path / "search.json",
    )
    assert result.interrupted
    assert [evaluation.levels for evaluation in result.history] == asked
    assert result.loss == min(map(plain, np.array(asked)))
    assert [file.name for file in tmp_path.iterdir()] == ["search.json"]


@pytest.mark.parametrize("method", ["direct", "ziplm", "evolution"])
@pytest.mark.parametrize("screened", [False, True])
def test_a_resumed_search_ends_as_if_it_had_not_been_interrupted(tmp_path, method, screened):
    problem = latency_problem(10, 2, seed=3)
    plain = hidden_loss(problem, 3, "pairs")
    screen = (lambda levels, fraction: plain(levels) * (1 + 0.1 * fraction)) if screened else None
    calls = itertools.count()
    asked = []

    def loss(levels):
        if next(calls) in (11, 12, 20):
            raise KeyboardInterrupt
        asked.append(tuple(levels.tolist()))
        return math.nan if len(asked) == 5 else plain(levels)

    def whole_loss(levels):
        return math.nan if tuple(levels.tolist()) == asked[4] else plain(levels)

    path = tmp_path / "search.json"
    for _ in range(4):
        result = search(problem, loss, evaluations=30, method=method, screen=screen, checkpoint=path)
    assert not result.interrupted
    assert len(set(asked)) == len(asked) == 30
    whole = search(problem, whole_loss, evaluations=30, method=method, screen=screen)
    assert [(e.levels, e.loss) for e in result.history] == [(e.levels, e.loss) for e in whole.history]
    seconds = [evaluation.seconds for evaluation in result.history]
    assert seconds == sorted(seconds)
    assert [file.name for file in tmp_path.iterdir()] == ["search.json"]


def test_a_resumed_search_without_a_finite_loss_names_the_checkpoint(tmp_path):
    problem = latency_problem(10, 2, seed=3)
    path = tmp_path / "search.json"
    with pytest.raises(ValueError, match="no candidate had a finite loss"):
        search(problem, lambda levels: math.nan, evaluations=5, checkpoint=path)
    with pytest.raises(ValueError, match=r"tried \(5\).* remove the checkpoint") as caught:
        search(problem, lambda levels: pytest.fail("evaluated again"), evaluations=5, checkpoint=path)
    assert str(path) in str(caught.value)
    # A message that starts with the path says that the file is unusable, which is not the case.
    assert not str(caught.value).startswith(str(path))
    result = search(problem, lambda levels: 1.0, evaluations=6, checkpoint=path)  # goes on from the failures
    assert (result.failed, result.loss) == (5, 1.0)


def test_ctrl_c_after_failed_evaluations_only_returns_what_was_done(tmp_path):
    problem = latency_problem(10, 2, seed=3)
    calls = itertools.count()

    def loss(levels):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return math.nan

    result = search(problem, loss, evaluations=40, checkpoint=tmp_path / "search.json")
    assert result.interrupted
    assert result.failed == result.evaluations == 3
    assert result.loss == math.inf
    assert problem.fits(result.levels)


@pytest.mark.parametrize("change", ["problem", "seed", "method", "starts"])
def test_a_checkpoint_of_another_search_is_refused(tmp_path, change):
    problem = latency_problem(6, 2, seed=3)
    arguments = {"problem": problem, "seed": 0, "method": "direct", "starts": []}
    path = tmp_path / "search.json"
    search(loss=lambda levels: 1.0, evaluations=3, checkpoint=path, **arguments)
    arguments[change] = {
        "problem": problem.with_budget(problem.budget * 1.01),
        "seed": 1,
        "method": "ziplm",
        "starts": [solve(problem)],
    }[change]
    with pytest.raises(ValueError, match="another problem, seed, method or starts"):
        search(loss=lambda levels: 1.0, evaluations=3, checkpoint=path, **arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a checkpoint"),
        ("[]", "not a checkpoint"),
        ('{"format": 2}', "not a checkpoint"),
        ("[" * 100_000, "not a checkpoint"),
        (
            '{"format": 1, "fingerprint": "", "evaluations": [[[0], 1%s, 0]]}' % ("0" * 400),
            "not a checkpoint",
        ),
        (
            '{"format": "%s", "fingerprint": "", "evaluations": [], "screens": []}' % ("x" * 10**5),
            "format 'xx",
        ),
    ],
)
def test_a_broken_checkpoint_is_refused(tmp_path, text, message):
    path = tmp_path / "search.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        search(latency_problem(6, 2, seed=3), lambda levels: 1.0, checkpoint=path)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "changed",
    [
        {"evaluations": [[[[0], 0, 0], 1.0, 0.0]]},
        {"evaluations": [[[0.0, 0, 0, 0, 0, 0], 1.0, 0.0]]},
        {"evaluations": [[[-1, 0, 0, 0, 0, 0], 1.0, 0.0]]},
        {"evaluations": [[[0, 0, 0, 0, 0, 0], float("nan"), 0.0]]},
        {"evaluations": [[[0, 0, 0, 0, 0, 0], 1.0, float("inf")]]},
        {"evaluations": [[[0, 0, 0, 0, 0, 0], 10**400, 0.0]]},
        {"evaluations": [3]},
        {"screens": [[[{}], 0.5, 1.0]]},
        {"screens": [[[0], "x", 1.0]]},
    ],
)
def test_damaged_values_in_a_checkpoint_are_refused(tmp_path, changed):
    path, problem = tmp_path / "search.json", latency_problem(6, 2, seed=3)
    search(problem, lambda levels: float(sum(levels)), 3, checkpoint=path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(ValueError, match=r"search.json is not a checkpoint of a search"):
        search(problem, lambda levels: float(sum(levels)), 6, checkpoint=path)


def test_a_checkpoint_that_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    with pytest.raises(ValueError, match="is not a file"):
        search(latency_problem(6, 2, seed=3), lambda levels: 1.0, checkpoint=tmp_path / "pipe")


def test_a_checkpoint_of_another_format_is_refused(tmp_path):
    path = tmp_path / "search.json"
    search(latency_problem(6, 2, seed=3), lambda levels: 1.0, evaluations=2, checkpoint=path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(ValueError, match="has format 99"):
        search(latency_problem(6, 2, seed=3), lambda levels: 1.0, evaluations=2, checkpoint=path)


def test_a_checkpoint_in_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        search(latency_problem(6, 2, seed=3), lambda levels: 1.0, checkpoint=tmp_path / "no" / "search.json")


def test_a_checkpoint_of_version_0_1_is_read(tmp_path):
    path = tmp_path / "search.json"
    path.write_text(
        '{"format": 1, "fingerprint": "4846cbedf31d36268d20e87cc0bd44b1dec60dd2f2b8f1b7e389e0883e5d1d08", '
        '"evaluations": [[[0, 1], null, 0.25], [[1, 0], 2.0, 0.5], [[1, 1], 5.0, 0.75]], "screens": []}'
    )
    result = search(
        Problem([[2, 1]] * 2, [[0, 1]] * 2, 3),
        lambda levels: pytest.fail("evaluated again"),
        screen=lambda levels, fraction: 1.0,
        checkpoint=path,
    )
    assert [(e.levels, e.loss, e.seconds) for e in result.history] == [
        ((0, 1), math.inf, 0.25),
        ((1, 0), 2.0, 0.5),
        ((1, 1), 5.0, 0.75),
    ]

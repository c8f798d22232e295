"""`--recover`: a bisection suggests a speedup, and a few finished models around it decide."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from spdy_search import InfeasibleBudget
from ziplm import UnreachableTarget, compress
from ziplm.options.targets import Target
from ziplm.pipelines import target_steps
from ziplm.pipelines.recover import Guess, bisect_speedup, fastest_that_recovers
from ziplm_compressed import Recorder, options_for, words
from ziplm_text import write_rows

LARGEST = 9.0
HALF = Target("recover", 0.5)


@dataclass(frozen=True)
class FakeChoices:
    """Choices whose levels name the prior and the speedup that they were solved for."""

    priors: Sequence[str] = ("a",)
    largest_speedup: float = LARGEST

    def budgets(self, target: Target) -> dict[str, float]:
        assert target.kind == "speedup"
        return {"speedup": target.value}

    def solve(self, name: str, budgets: Mapping[str, float]) -> list[float]:
        if name == "impossible":
            raise InfeasibleBudget("nothing fits")
        return [self.priors.index(name), budgets["speedup"]]

    def chosen(self, levels: list[float]) -> list[float]:
        return levels


@dataclass(frozen=True)
class FakeCandidate:
    """A finished model, of which only the metric matters."""

    speedup: float
    report: dict[str, Any] = field(default_factory=dict)


class Attempts:
    """Builds candidates whose metric is a function of the speedup, and remembers the speedups.

    Speedups above `reached` are not reached.
    """

    def __init__(self, metric: Callable[[float], float], reached: float = LARGEST) -> None:
        self.metric, self.reached = metric, reached
        self.speedups: list[float] = []

    def __call__(self, number: int, speedup: float) -> FakeCandidate | None:
        assert number == len(self.speedups)
        self.speedups.append(speedup)
        if speedup > self.reached:
            return None
        return FakeCandidate(speedup, {"metric": {"compressed": self.metric(speedup)}})


def bisect(metric_of: Callable[[float], float], greater_is_better: bool = True, dense: float = 1.0) -> Guess:
    choices: Any = FakeChoices()
    return bisect_speedup(
        choices,
        ["a"],
        HALF,
        dense,
        greater_is_better,
        loss=lambda sizes: 0.0,
        metric_of=lambda sizes, speedup: metric_of(speedup),
    )


def fastest(
    attempts: Attempts, guess: float, greater_is_better: bool = True, wanted: float = 1.0
) -> FakeCandidate:
    build: Any = attempts
    found: Any = fastest_that_recovers(Guess(guess, wanted, []), LARGEST, greater_is_better, build)
    assert isinstance(found, FakeCandidate)
    return found


@pytest.mark.parametrize("limit", [1.1, 2.0, 5.0])
@pytest.mark.parametrize("greater_is_better", [True, False], ids=["accuracy", "perplexity"])
def test_bisection_finds_the_largest_speedup_that_keeps_the_share(
    limit: float, greater_is_better: bool
) -> None:
    """The metric is at the dense model's 3, and at half the quality at the limit."""
    wanted = 3 * 0.5 if greater_is_better else 3 / 0.5
    if greater_is_better:
        found = bisect(lambda speedup: wanted * limit / speedup, True, dense=3.0)
    else:
        found = bisect(lambda speedup: wanted * speedup / limit, False, dense=3.0)
    assert found.wanted == wanted
    assert limit / LARGEST ** (1 / 2**7) <= found.speedup <= limit
    assert len(found.steps) == 7
    assert found.steps[0]["speedup"] == pytest.approx(3.0)  # the middle of 1 and 9 by ratio
    good = [step["speedup"] for step in found.steps if step["speedup"] <= limit]
    assert max(good, default=1.0) == pytest.approx(found.speedup)
    for step in found.steps:
        kept = step["metric"] >= wanted if greater_is_better else step["metric"] <= wanted
        assert kept == (step["speedup"] <= limit)


def test_bisection_returns_a_small_speedup_if_none_keeps_the_share() -> None:
    found = bisect(lambda speedup: 0.0)
    assert found.speedup == 1.01
    assert all(step["metric"] == 0 for step in found.steps)


def test_bisection_gets_near_the_largest_speedup_if_all_keep_the_share() -> None:
    assert LARGEST / LARGEST ** (1 / 2**7) <= bisect(lambda speedup: 1.0).speedup < LARGEST


def test_the_loss_decides_between_the_solutions_of_the_priors() -> None:
    choices: Any = FakeChoices(("a", "b", "c"))
    seen = []

    def metric_of(sizes: list[Any], speedup: float) -> float:
        seen.append(sizes)
        return 1.0

    found = bisect_speedup(
        choices,
        ["a", "b", "c"],
        HALF,
        1.0,
        True,
        loss=lambda sizes: abs(sizes[0] - 1),
        metric_of=metric_of,
    )
    assert seen == [[1, step["speedup"]] for step in found.steps]


def test_budgets_that_no_assignment_keeps_are_reported() -> None:
    choices: Any = FakeChoices()
    with pytest.raises(UnreachableTarget, match=r"the limits cannot be met: nothing fits; loosen a limit$"):
        bisect_speedup(
            choices, ["impossible"], HALF, 1.0, True, lambda sizes: 0.0, lambda sizes, speedup: 1.0
        )


@pytest.mark.parametrize("greater_is_better", [True, False], ids=["accuracy", "perplexity"])
def test_after_a_kept_guess_faster_models_are_tried_until_one_fails(greater_is_better: bool) -> None:
    limit = 2.3
    metric = (lambda speedup: limit / speedup) if greater_is_better else (lambda speedup: speedup / limit)
    attempts = Attempts(metric)
    found = fastest(attempts, 2.0, greater_is_better)
    assert attempts.speedups == pytest.approx([2, 2 / 0.9, 2 / 0.81])
    assert found.speedup == pytest.approx(2 / 0.9)
    assert found.report["recover"] == {"wanted": 1.0, "kept": True}


def test_a_failing_attempt_ends_the_search_for_faster_models() -> None:
    """An even faster model that would keep the share by chance is not looked for."""
    attempts = Attempts(lambda speedup: 0.0 if 2.1 < speedup < 2.3 else 1.0)
    assert fastest(attempts, 2.0).speedup == 2
    assert attempts.speedups == pytest.approx([2, 2 / 0.9])


def test_at_most_four_models_are_finished() -> None:
    attempts = Attempts(lambda speedup: 1.0)
    assert fastest(attempts, 2.0).speedup == pytest.approx(2 / 0.9**3)
    assert len(attempts.speedups) == 4


def test_no_model_is_tried_near_the_largest_speedup() -> None:
    attempts = Attempts(lambda speedup: 1.0)
    assert fastest(attempts, 0.9 * 0.9 * LARGEST - 1e-9).speedup == pytest.approx(0.9 * LARGEST)
    assert len(attempts.speedups) == 2


@pytest.mark.parametrize("greater_is_better", [True, False], ids=["accuracy", "perplexity"])
def test_after_a_failing_guess_slower_models_are_tried_until_one_keeps_the_share(
    greater_is_better: bool,
) -> None:
    limit = 1.7
    metric = (lambda speedup: limit / speedup) if greater_is_better else (lambda speedup: speedup / limit)
    attempts = Attempts(metric)
    found = fastest(attempts, 2.0, greater_is_better)
    assert attempts.speedups == pytest.approx([2, 1.8, 1.62])
    assert found.speedup == pytest.approx(1.62)
    assert found.report["recover"] == {"wanted": 1.0, "kept": True}


@pytest.mark.parametrize("greater_is_better", [True, False], ids=["accuracy", "perplexity"])
def test_if_no_model_keeps_the_share_the_slowest_attempt_is_returned(greater_is_better: bool) -> None:
    attempts = Attempts(lambda speedup: 0.5 if greater_is_better else 2.0)
    found = fastest(attempts, 2.0, greater_is_better)
    assert attempts.speedups == pytest.approx([2, 1.8, 1.62, 1.458])
    assert found.speedup == pytest.approx(1.458)
    assert found.report["recover"] == {"wanted": 1.0, "kept": False}


def test_no_model_slower_than_a_hundredth_above_dense_is_tried() -> None:
    attempts = Attempts(lambda speedup: 0.5)
    assert fastest(attempts, 1.1).speedup == 1.01
    assert attempts.speedups == pytest.approx([1.1, 1.01])


def test_a_good_model_is_kept_if_a_faster_one_is_not_reached() -> None:
    attempts = Attempts(lambda speedup: 1.0, reached=2.3)
    assert fastest(attempts, 2.0).speedup == pytest.approx(2 / 0.9)
    assert attempts.speedups == pytest.approx([2, 2 / 0.9, 2 / 0.81])


def test_after_a_guess_that_is_not_reached_slower_models_are_tried() -> None:
    attempts = Attempts(lambda speedup: 1.0, reached=1.7)
    assert fastest(attempts, 2.0).speedup == pytest.approx(1.62)
    assert attempts.speedups == pytest.approx([2, 1.8, 1.62])


def test_if_no_model_is_reached_there_is_none() -> None:
    attempts = Attempts(lambda speedup: 1.0, reached=1.0)
    with pytest.raises(UnreachableTarget, match=r"is as fast as intended, not even 1\.46x; give --profile-"):
        fastest(attempts, 2.0)
    assert len(attempts.speedups) == 4


def test_an_attempt_that_measures_too_slow_ends_no_run(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = target_steps.fit

    def too_slow_at_first(start: Any, pruned: Any, found: Any, aim: Any, state: Path, run: Any) -> Any:
        if state.name == "attempt0":
            raise UnreachableTarget("measured as a whole", "as planned")
        return fit(start, pruned, found, aim, state, run)

    monkeypatch.setattr(target_steps, "fit", too_slow_at_first)
    options = options_for(files, "gpt2", tmp_path / "run", recover=[0.5], evaluations=0)
    recorder = Recorder()
    (member,) = compress(**options, progress=recorder)
    assert member.metrics["recover"]["kept"]
    guess = json.loads((tmp_path / "run/state/targets/recover0.5/recover.json").read_text())["speedup"]
    assert f"recover: {guess:.2f}x is not reached: measured as a whole" in recorder.notes
    assert 0.9 * guess <= member.metrics["predicted"]["speedup"] < guess


def test_recover_keeps_a_share_of_the_metric(files: Path, tmp_path: Path) -> None:
    """The finished model's own metric decides, not the one that the bisection saw."""
    (member,) = compress(**options_for(files, "gpt2", tmp_path / "run", recover=[0.9], evaluations=0))
    assert member.target == "recover0.9"
    metric = member.metrics["metric"]
    steps = json.loads((tmp_path / "run/state/targets/recover0.9/recover.json").read_text())
    assert steps["wanted"] == pytest.approx(metric["dense"] / 0.9)
    good = [step["speedup"] for step in steps["steps"] if step["metric"] <= steps["wanted"]]
    bad = [step["speedup"] for step in steps["steps"] if step["metric"] > steps["wanted"]]
    assert max(good, default=1.01) <= steps["speedup"] * (1 + 1e-9)
    assert not bad or not good or max(good) < min(bad)
    kept = metric["compressed"] <= steps["wanted"]
    assert member.metrics["recover"] == {"wanted": steps["wanted"], "kept": kept}
    assert kept or member.metrics["predicted"]["speedup"] < 1.3


def test_a_missed_share_is_reported(files: Path, tmp_path: Path) -> None:
    """No smaller model has exactly the nearest neighbours of the dense one."""
    texts = write_rows(tmp_path / "texts.csv", [{"text": text} for text in words(80, 3)])
    options = options_for(files, "bert", tmp_path / "run", recover=[1.0], evaluations=0)
    options |= {"task": "embedding", "train_file": texts, "validation_file": texts, "seed": 1}
    recorder = Recorder()
    (member,) = compress(**options, progress=recorder)
    metric = member.metrics["metric"]
    assert metric["dense"] == 1
    assert metric["compressed"] < 1
    assert member.metrics["recover"] == {"wanted": 1.0, "kept": False}
    assert recorder.notes == ["target recover1 (1 of 1)", "target recover1 is missed: 1 was wanted"]

"""A refit that does not help with few samples is not repeated with all; one that does help is."""

from pathlib import Path
from typing import Any

import pytest
import ziplm
from transformers import PreTrainedModel
from ziplm.pipelines import refit_steps
from ziplm_compressed import options_for


@pytest.mark.parametrize("helps", [False, True])
def test_a_refit_is_tried_with_few_samples_first(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helps: bool
) -> None:
    asked: list[int] = []
    real = refit_steps.refit

    def counted(*args: Any, most_samples: int, **more: Any) -> PreTrainedModel:
        asked.append(most_samples)
        return real(*args, most_samples=most_samples, **more)

    monkeypatch.setattr(refit_steps, "refit", counted)
    monkeypatch.setattr(refit_steps, "TRIAL_SAMPLES", 4)
    monkeypatch.setattr(refit_steps, "is_promising", lambda trial: helps)
    monkeypatch.setattr(refit_steps, "is_clearly_lower", lambda after, before: True)
    options = options_for(files, "bert", tmp_path / "run", speedup=[2], evaluations=0)
    (member,) = ziplm.compress(**options)
    assert asked == ([4, refit_steps.MOST_SAMPLES] if helps else [4])
    assert member.metrics["refit"]["kept"] == helps
    assert ("ended after 4 samples" in (tmp_path / "run" / "run.log").read_text()) != helps


def test_few_samples_are_used_at_once(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refit_steps, "is_promising", lambda trial: pytest.fail("there is nothing to try"))
    ziplm.compress(**options_for(files, "bert", tmp_path / "run", speedup=[2], evaluations=0))


@pytest.mark.parametrize(("architecture", "refits"), [("bert", False), ("gpt2", True)])
def test_models_that_read_a_single_token_are_refitted_only_if_asked(
    files: Path, tmp_path: Path, architecture: str, refits: bool
) -> None:
    options = options_for(files, architecture, tmp_path / "run", speedup=[2], evaluations=0)
    del options["refit"]
    (member,) = ziplm.compress(**options)
    assert (member.metrics["refit"] is not None) == refits

"""Options of a file combined with those of a command line, as ``ziplm compress --config`` does."""

from pathlib import Path
from typing import Any

import pytest
from ziplm import Options, UsageError
from ziplm.options.options import PAPER
from ziplm.options.presets import find_preset
from ziplm.options.toml import merged, read_options, save_options

BASIC: dict[str, Any] = {"model": "m", "task": "sst2", "output": "o"}


def stored(folder: Path, **values: Any) -> dict[str, Any]:
    """Save options as a run does, and read them as a command does."""
    save_options(Options(**BASIC, **values), folder / "config.toml")
    return read_options(folder / "config.toml")


def test_the_command_line_takes_precedence_over_a_file(tmp_path: Path) -> None:
    file = stored(tmp_path, speedup=(2.0,), seed=3)
    assert merged(file, {"seed": 5, "output": "other"}) == {**file, "seed": 5, "output": "other"}
    assert merged(file, {}) == file
    assert merged({}, {"seed": 5}) == {"seed": 5}


def test_another_method_replaces_the_values_that_the_first_one_set(tmp_path: Path) -> None:
    paper = stored(tmp_path, method="ziplm", speedup=(2.0,), seed=3)
    assert {name: paper[name] for name in PAPER} == PAPER
    assert Options(**merged(paper, {"method": "default"})) == Options(**BASIC, speedup=(2.0,), seed=3)
    plain = stored(tmp_path, speedup=(2.0,))
    assert Options(**merged(plain, {"method": "ziplm"})) == Options(**BASIC, method="ziplm", speedup=(2.0,))
    both = Options(**merged(plain, {"method": "ziplm", "refit": True}))
    assert (both.refit, both.centred) == (True, False)


def test_naming_the_same_method_or_preset_again_keeps_the_values_of_the_file(tmp_path: Path) -> None:
    file = stored(tmp_path, method="ziplm", evaluations=7, preset="bert-base-glue", learning_rate=1.0)
    assert merged(file, {"method": "ziplm", "preset": "bert-base-glue"}) == file


def test_another_preset_replaces_the_values_that_the_first_one_set(tmp_path: Path) -> None:
    file = stored(tmp_path, preset="bert-large-squad", seed=3)
    both = Options(**merged(file, {"preset": "gpt2-openwebtext"}))
    assert both == Options(**BASIC, preset="gpt2-openwebtext", seed=3)
    assert both.speedup == find_preset("gpt2-openwebtext").targets


def test_a_preset_replaces_the_speedups_of_a_file_but_no_other_targets(tmp_path: Path) -> None:
    file = stored(tmp_path, speedup=(2.0,), seed=3)
    both = Options(**merged(file, {"preset": "bert-base-glue"}))
    assert both == Options(**BASIC, preset="bert-base-glue", seed=3)
    file = stored(tmp_path, latency_ms=(5.0,), seed=3)
    both = Options(**merged(file, {"preset": "bert-base-glue"}))
    assert both == Options(**BASIC, preset="bert-base-glue", latency_ms=(5.0,), seed=3)
    both = Options(**merged(file, {"preset": "bert-base-glue", "speedup": (3.0,)}))
    assert (both.speedup, both.latency_ms) == ((3.0,), (5.0,))


def test_a_preset_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no preset 'bert'"):
        merged(stored(tmp_path), {"preset": "bert"})

"""Lengths by regime: what each regime uses, the old name of --input-length, and files of version 0.1."""

import warnings
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner
from ziplm import Options, UsageError
from ziplm.cli import main
from ziplm.options.kinds import Regime
from ziplm.options.rules import UNUSED
from ziplm.options.toml import load_options, read_options, save_options

BASIC: dict[str, Any] = {"model": "m", "task": "sst2", "output": "o", "speedup": (2.0,)}
LENGTHS: dict[str, Any] = {"input_length": (20,), "prompt_length": (20,), "new_tokens": 5}
USED: dict[str, dict[str, Any]] = {
    "throughput": {"input_length": (20,)},
    "latency": {"input_length": (60, 20)},
    "generate": {"prompt_length": (9, 4), "new_tokens": 5},
}


def invoke(*arguments: object) -> str:
    """Return what ``ziplm compress`` writes to stderr."""
    result = CliRunner().invoke(main, ["compress", "m", *map(str, arguments)])
    assert "Traceback" not in result.output
    return result.stderr


def test_every_regime_is_tested() -> None:
    assert set(USED) == set(UNUSED) == set(get_args(Regime))
    for regime, used in USED.items():
        assert used.keys() | set(UNUSED[regime]) == LENGTHS.keys()
        assert used.keys().isdisjoint(UNUSED[regime])


@pytest.mark.parametrize(("regime", "name"), [(regime, name) for regime in UNUSED for name in UNUSED[regime]])
def test_a_length_that_the_regime_does_not_use_is_an_error(regime: str, name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(UsageError) as caught:
        Options(**BASIC, regime=regime, **{name: LENGTHS[name]})
    message = str(caught.value)
    assert message.startswith(f"{flag} is not used with --regime {regime}; ")
    hint = message.split("; ")[1]
    if regime == "generate":
        assert hint == "give --prompt-length and --new-tokens"
    elif name == "prompt_length":
        assert hint == "give --input-length, or use --regime generate"
    else:
        assert hint == "leave it out, or use --regime generate"
    value = LENGTHS[name][0] if isinstance(LENGTHS[name], tuple) else LENGTHS[name]
    shown = invoke("--task", "sst2", "-o", "o", "--speedup", 2, "--regime", regime, flag, value)
    assert shown == f"Error: {message}\n"


@pytest.mark.parametrize("regime", USED)
def test_a_default_given_explicitly_is_an_error_as_well(regime: str) -> None:
    for name in UNUSED[regime]:
        with pytest.raises(UsageError, match="is not used with"):
            Options(**BASIC, regime=regime, **{name: Options.model_fields[name].default})


@pytest.mark.parametrize("regime", USED)
def test_a_regime_measures_the_lengths_that_it_uses(regime: str) -> None:
    options = Options(**BASIC, regime=regime, **USED[regime])
    setting = options.setting
    assert setting.lengths == {"throughput": (20,), "latency": (20, 60), "generate": (4, 9)}[regime]
    assert setting.new_tokens == (5 if regime == "generate" else 64)
    assert options.data_length == {"throughput": 20, "latency": 128, "generate": 128}[regime]
    assert Options(**BASIC, regime=regime, **USED[regime], max_length=7).data_length == 7


def test_throughput_is_measured_at_one_length() -> None:
    message = "throughput is measured at one length, not at 2; give one --input-length, or use --regime lat"
    with pytest.raises(UsageError, match=message):
        Options(**BASIC, input_length=(20, 60))


def test_the_old_name_warns_in_python() -> None:
    with pytest.warns(
        DeprecationWarning, match="^sequence_length is deprecated; use input_length$"
    ) as warned:
        options = Options(**BASIC, sequence_length=20)
    assert options == Options(**BASIC, input_length=20)
    assert "input_length" in options.model_fields_set
    assert [Path(warning.filename).name for warning in warned] == [Path(__file__).name]


@pytest.mark.filterwarnings("ignore:sequence_length:DeprecationWarning")
def test_the_old_name_follows_the_rules_of_the_new_one() -> None:
    assert Options(**BASIC, sequence_length=20, input_length=30).input_length == (30,)
    with pytest.raises(UsageError, match="--input-length is not used with --regime generate"):
        Options(**BASIC, regime="generate", sequence_length=20)
    with pytest.raises(UsageError, match="input_length is 0; use a whole number from 1 up"):
        Options(**BASIC, sequence_length=0)


def test_the_old_name_on_the_command_line_warns_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Options] = []
    monkeypatch.setattr("ziplm.cli.compress._compress", lambda asked, *_: made.append(asked))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        required = ("--task", "sst2", "-o", "o", "--speedup", 2)
        assert invoke(*required, "--sequence-length", 20) == ""
        assert invoke(*required, "--sequence-length", 20, "--input-length", 30) == ""
    assert made == [Options(**BASIC, input_length=20), Options(**BASIC, input_length=30)]


@pytest.mark.parametrize("given", [True, False], ids=["lengths given", "no lengths"])
@pytest.mark.parametrize("regime", USED)
def test_the_file_of_a_run_gives_the_same_options_again(tmp_path: Path, regime: str, given: bool) -> None:
    options = Options(**BASIC, regime=regime, **(USED[regime] if given else {}))
    save_options(options, tmp_path / "config.toml")
    assert set(read_options(tmp_path / "config.toml")).isdisjoint(UNUSED[regime])
    again = load_options(tmp_path / "config.toml")
    assert again == options
    assert again.setting == options.setting
    assert again.differences(options) == []


FROM_0_1 = """model = "m"
task = "sst2"
output = "o"
speedup = [2.0]
max_length = 50
sequence_length = 20
prompt_length = {prompts}
new_tokens = 5
clock = "wall"
regime = "{regime}"
"""
"""The lengths of a file of version 0.1, which held all options, whatever the regime."""


@pytest.mark.parametrize(
    ("regime", "prompts", "wanted"),
    [
        ("throughput", [], {"input_length": 20}),
        ("throughput", [4, 9], {"input_length": 20}),
        ("latency", [], {}),
        ("latency", [4, 9], {"input_length": (4, 9)}),
        ("generate", [], {"new_tokens": 5}),
        ("generate", [4, 9], {"prompt_length": (4, 9), "new_tokens": 5}),
    ],
)
def test_a_file_of_0_1_loads_with_the_lengths_that_its_regime_used(
    tmp_path: Path, regime: str, prompts: list[int], wanted: dict[str, Any]
) -> None:
    (tmp_path / "config.toml").write_text(FROM_0_1.format(regime=regime, prompts=prompts))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = load_options(tmp_path / "config.toml")
    assert options == Options(**BASIC, regime=regime, clock="wall", max_length=50, **wanted)
    save_options(options, tmp_path / "again.toml")
    assert load_options(tmp_path / "again.toml") == options


def test_a_written_file_may_use_the_old_name_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("sequence-length = 20\n")
    assert read_options(tmp_path / "mine.toml") == {"input_length": 20}

"""Presets: the values of the paper, and how they combine with options given explicitly."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ziplm import Options, UsageError
from ziplm.cli.presets import presets
from ziplm.options.presets import PRESETS, find_preset
from ziplm.options.toml import load_options, save_options

# The paper's table, copied independently of the source: batch, tokens, epochs or steps before, epochs
# between, learning rate, calibration samples, λ1, λ2, λ3, weight decay.
PAPER = {
    "bert-base-glue": (32, 128, 3, 8, 8e-5, 2048, 0, 0.5, 0.5, 0.03),
    "bert-base-squad": (16, 384, 3, 8, 8e-5, 2048, 0, 1.0, 0.0, 0.03),
    "bert-large-squad": (16, 384, 3, 10, 5e-5, 2048, 0, 1.0, 0.0, 0.05),
    "gpt2-openwebtext": (128, 1024, 50_000, 2, 1e-3, 512, 1.0, 0, 0, 0),
}


@pytest.mark.parametrize("name", PAPER)
def test_presets_have_the_values_of_the_paper(name: str) -> None:
    preset = find_preset(name)
    between, before, loss = preset.between, preset.before, preset.loss
    assert PAPER[name] == (
        between.batch_size * between.gradient_accumulation,
        preset.max_length,
        before.max_steps if before.max_steps > 0 else before.epochs,
        between.epochs,
        between.learning_rate,
        preset.calibration_samples,
        loss.task,
        loss.logit,
        loss.token,
        between.weight_decay,
    )
    assert between.max_steps == -1
    assert before.learning_rate == between.learning_rate
    assert (between.schedule, between.warmup_ratio, loss.temperature) == ("linear", 0.0, 1.0)
    assert between.dropout == before.dropout == (name != "gpt2-openwebtext")
    if name == "gpt2-openwebtext":
        assert preset.targets == (1.5, 2, 2.5, 3)
    else:
        assert preset.targets == tuple(range(2, 16))


def test_every_preset_is_in_the_paper() -> None:
    assert PRESETS.keys() == PAPER.keys()


def test_the_error_for_an_unknown_preset_suggests_a_similar_one() -> None:
    with pytest.raises(UsageError, match=r"no preset 'bert-base-glu'; try bert-base-glue$"):
        find_preset("bert-base-glu")
    with pytest.raises(UsageError, match=r"try bert-base-glue, bert-base-squad, bert-large-squad, gpt2-open"):
        find_preset("x")


def test_the_command_shows_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(presets)
    assert shown.exit_code == 0, shown.output
    rows: dict[str, list[str]] = {}  # of every heading, the values in the order of the presets
    for line in shown.output.splitlines():
        if line.startswith("│"):
            heading, value = (cell.strip() for cell in line.strip("│ ").split("│"))
            rows.setdefault(heading, []).append(value)
    assert {len(values) for values in rows.values()} == {len(PRESETS)}
    assert rows["learning rate"] == ["8e-05", "8e-05", "5e-05", "0.001"]
    assert rows["training after each target"] == ["8 epochs", "8 epochs", "10 epochs", "2 epochs"]
    assert rows["training before pruning"][-1] == "50,000 steps"
    assert rows["batch size"] == ["32", "16", "16", "128 (16 x 8)"]
    assert rows["λ2 logit"] == ["0.5", "1", "1", "0"]
    assert rows["dropout"] == ["as in the model"] * 3 + ["off"]
    for name in PRESETS:
        assert f"{name}: " in shown.output


def options_with(**values: Any) -> Options:
    return Options(model="m", task="sst2", output="o", **values)


def test_explicit_values_override_a_preset_even_if_they_are_defaults(tmp_path: Path) -> None:
    plain = options_with()
    given = {"logit_weight": plain.logit_weight, "max_length": None, "mode": "oneshot", "dense_epochs": 0}
    options = options_with(preset="bert-base-glue", **given)
    assert {name: getattr(options, name) for name in given} == given
    assert (options.token_weight, options.calibration_samples) == (0.5, 2048)
    assert options_with(method="ziplm", refit=True).refit
    assert not options_with(method="ziplm").refit
    save_options(options, tmp_path / "config.toml")
    assert load_options(tmp_path / "config.toml").logit_weight == options.logit_weight


@pytest.mark.parametrize(
    ("preset", "given", "expected"),
    [
        ("bert-base-glue", {}, (3.0, -1)),
        ("bert-base-glue", {"dense_epochs": 0}, (0.0, -1)),
        ("bert-base-glue", {"dense_steps": 7}, (0.0, 7)),
        ("gpt2-openwebtext", {}, (0.0, 50_000)),
        ("gpt2-openwebtext", {"dense_steps": 0}, (0.0, 0)),
        ("gpt2-openwebtext", {"dense_epochs": 1.5}, (1.5, -1)),
    ],
)
def test_explicit_epochs_or_steps_replace_both_of_a_preset(
    preset: str, given: dict[str, Any], expected: tuple[float, int]
) -> None:
    options = options_with(preset=preset, **given)
    assert (options.dense_epochs, options.dense_steps) == expected


def test_a_gradual_run_needs_a_positive_loss_weight() -> None:
    none = {"logit_weight": 0, "token_weight": 0}
    with pytest.raises(UsageError, match=r"all weights of the loss are 0; .* --task-weight 1"):
        options_with(mode="gradual", **none)
    assert options_with(mode="gradual", task_weight=1, **none).task_weight == 1
    with pytest.raises(UsageError, match="token_weight is -1; use 0 or more"):
        options_with(token_weight=-1)


def test_an_explicit_target_replaces_those_of_a_preset() -> None:
    options = options_with(preset="bert-base-glue", latency_ms=(5.0,))
    assert (options.speedup, options.latency_ms) == ((), (5.0,))
    assert options_with(preset="bert-base-glue").speedup  # control

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from token_distill import DistillationLoss
from ziplm import Options, UsageError
from ziplm.cli.presets import presets
from ziplm.options.presets import PRESETS, find_preset

# The paper's table, read anew: batch, tokens, epochs or steps before, epochs between, learning rate,
# calibration samples, λ1, λ2, λ3, weight decay.
PAPER = {
    "bert-base-glue": (32, 128, 3, 8, 8e-5, 2048, 0, 0.5, 0.5, 0.03),
    "bert-base-squad": (16, 384, 3, 8, 8e-5, 2048, 0, 1.0, 0.0, 0.03),
    "bert-large-squad": (16, 384, 3, 10, 5e-5, 2048, 0, 1.0, 0.0, 0.05),
    "gpt2-openwebtext": (128, 1024, 50_000, 2, 1e-3, 512, 1.0, 0, 0, 0),
}


@pytest.mark.parametrize("name", PAPER)
def test_presets_are_those_of_the_paper(name: str) -> None:
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
    assert {preset.loss for preset in PRESETS.values()} == {
        DistillationLoss.preset(name) for name in ("squad", "glue", "gpt2")
    }


def test_unknown_preset_is_refused_with_a_close_one() -> None:
    with pytest.raises(UsageError, match=r"no preset 'bert-base-glu'; try bert-base-glue$"):
        find_preset("bert-base-glu")
    with pytest.raises(UsageError, match=r"try bert-base-glue, bert-base-squad, bert-large-squad, gpt2-open"):
        find_preset("x")


def test_command_shows_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(presets)
    assert shown.exit_code == 0, shown.output
    rows = {
        cells[0]: cells[1:]
        for line in shown.output.splitlines()
        if len(cells := [cell.strip() for cell in re.split("[│┃]", line.strip("│┃ "))]) == 5
    }
    assert rows["learning rate"] == ["8e-05", "8e-05", "5e-05", "0.001"]
    assert rows["training after each target"] == ["8 epochs", "8 epochs", "10 epochs", "2 epochs"]
    assert rows["training before pruning"][-1] == "50,000 steps"
    assert rows["batch size"] == ["32", "16", "16", "128 (16 x 8)"]
    assert rows["λ2 logit"] == ["0.5", "1", "1", "0"]
    assert rows["dropout"] == ["as in the model"] * 3 + ["off"]
    for name in PRESETS:
        assert f"{name}: " in shown.output


def config_with(**options: Any) -> Options:
    return Options("m", "sst2", "o", **options)


def test_what_is_said_stands_against_a_preset_also_if_it_is_the_default(tmp_path: Path) -> None:
    plain = config_with()
    said = {"logit_weight": plain.logit_weight, "max_length": None, "mode": "oneshot", "dense_epochs": 0}
    config = config_with(preset="bert-base-glue", **said)
    assert {name: getattr(config, name) for name in said} == said
    assert (config.token_weight, config.calibration_samples) == (0.5, 2048)
    assert config_with(method="ziplm", refit=True).refit
    assert not config_with(method="ziplm").refit
    config.save(tmp_path / "config.toml")
    assert Options.load(tmp_path / "config.toml").logit_weight == config.logit_weight


@pytest.mark.parametrize(
    ("preset", "said", "expected"),
    [
        ("bert-base-glue", {}, (3.0, -1)),
        ("bert-base-glue", {"dense_epochs": 0}, (0.0, -1)),
        ("bert-base-glue", {"dense_steps": 7}, (0.0, 7)),
        ("gpt2-openwebtext", {}, (0.0, 50_000)),
        ("gpt2-openwebtext", {"dense_steps": 0}, (0.0, 0)),
        ("gpt2-openwebtext", {"dense_epochs": 1.5}, (1.5, -1)),
    ],
)
def test_the_training_before_is_by_epochs_or_by_steps(
    preset: str, said: dict[str, Any], expected: tuple[float, int]
) -> None:
    config = config_with(preset=preset, **said)
    assert (config.dense_epochs, config.dense_steps) == expected


def test_a_loss_without_any_part_is_refused() -> None:
    none = {"logit_weight": 0, "token_weight": 0}
    with pytest.raises(UsageError, match=r"all weights of the loss are 0; .* --task-weight 1"):
        config_with(mode="gradual", **none)
    assert config_with(mode="gradual", task_weight=1, **none).task_weight == 1
    with pytest.raises(UsageError, match="token_weight is -1; use 0 or more"):
        config_with(token_weight=-1)


def test_a_target_that_is_said_stands_against_those_of_a_preset() -> None:
    said = Options("m", "sst2", "o", preset="bert-base-glue", latency_ms=(5.0,))
    assert (said.speedup, said.latency_ms) == ((), (5.0,))
    assert Options("m", "sst2", "o", preset="bert-base-glue").speedup  # control

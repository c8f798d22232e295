"""Options that several commands share. Defaults are those of `Config`, and stand nowhere else."""

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import click

from ziplm.benchmarking import REGIMES, Setting
from ziplm.config import DTYPES, Config

Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULTS = {field.name: field.default for field in fields(Config) if field.default is not MISSING}


def option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """A click option whose default is the one of the `Config` field of its name."""
    field = next(name for name in names if name.startswith("--")).split("/")[0].strip("-").replace("-", "_")
    default = _DEFAULTS[field]
    if default not in (None, ()):
        settings = {"default": default, "show_default": True, **settings}
    return click.option(*names, **settings)


def options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several decorators as one, in the order in which --help lists them."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def given(context: click.Context) -> dict[str, Any]:
    """What was said on the command line, by name, without defaults."""
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    }


def setting_of(
    batch_size: int | None, dtype: str, prompt_length: tuple[int, ...], **environment: Any
) -> Setting:
    """What `environment_options` ask for, but for --attention, which is up to the model."""
    return Setting(
        batch_size=batch_size or 0, dtype=DTYPES[dtype], prompt_lengths=prompt_length, **environment
    )


data_options = options(
    option("--train-file", metavar="FILE", help="Examples to calibrate on: csv, tsv, json, parquet or text."),
    option("--validation-file", metavar="FILE", help="Examples to evaluate on."),
    option("--eval-file", metavar="FILE", help="Evaluate on this instead."),
    option("--text-column", multiple=True, metavar="NAME", help="Column of text; twice for pairs."),
    option("--label-column", metavar="NAME", help="Column of labels."),
    option(
        "--max-length",
        type=click.IntRange(min=2),
        help="Longest example in tokens.  [default: --sequence-length]",
    ),
)

environment_options = options(
    option(
        "--regime",
        type=click.Choice(REGIMES),
        help="What is timed: a batch, single inputs of several lengths, or text being generated.",
    ),
    option(
        "--batch-size",
        type=click.IntRange(min=1),
        default=None,
        show_default=False,
        help="Of the inputs that are measured.  [default: 8; latency and generate 1]",
    ),
    option("--sequence-length", type=click.IntRange(min=1), help="Of the inputs, for throughput."),
    option(
        "--prompt-length",
        multiple=True,
        type=click.IntRange(min=1),
        help="Of the inputs, for latency and generate; repeatable.  [default: 16, 64, 128 as they fit]",
    ),
    option("--new-tokens", type=click.IntRange(min=1), help="For generate."),
    option("--threads", type=click.IntRange(min=1), help="Of torch while measuring.  [default: torch's]"),
    option("--device", help="Such as cpu or cuda:0."),
    option("--dtype", type=click.Choice(list(DTYPES)), help="Of the models that are measured."),
    option("--engine", type=click.Choice(["eager", "compile"]), help="What runs the models."),
    option("--attention", type=click.Choice(["eager", "sdpa", "flash_attention_2"]), help="Implementation."),
    option("--clock", type=click.Choice(["wall", "cpu"]), help="cpu on machines with other load."),
)

training_options = options(
    option("--mode", type=click.Choice(["oneshot", "gradual"]), help="gradual: fine-tune after each target."),
    option("--preset", help="Hyper-parameters of the paper; see `ziplm presets`."),
    option("--dense-epochs", type=float, help="Fine-tune the dense model first."),
    option("--dense-steps", type=int, help="The same in steps; 0 for none."),
    option("--epochs-per-step", type=float, help="Of fine-tuning after each target."),
    option("--steps-per-target", type=int, help="The same in steps."),
    option("--learning-rate", type=float, help="Decays from this in each step."),
    option("--train-batch-size", type=click.IntRange(min=1), help="Of fine-tuning."),
    option("--gradient-accumulation", type=click.IntRange(min=1), help="Passes to an optimizer step."),
    option("--weight-decay", type=float, help="Of fine-tuning."),
    option("--dropout/--no-dropout", help="While fine-tuning."),
    option("--precision", type=click.Choice(["float32", "bf16", "fp16"]), help="Of fine-tuning on a GPU."),
    option("--task-weight", type=float, help="λ1, of the task's own loss."),
    option("--logit-weight", type=float, help="λ2, of the distillation of outputs."),
    option("--token-weight", type=float, help="λ3, of the distillation of hidden states."),
    option("--temperature", type=float, help="Of the distillation of outputs."),
    option("--report-to", multiple=True, help="Trackers by the names of transformers."),
)

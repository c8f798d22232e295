"""Command line options that several commands share. Their defaults are those of `Options`."""

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import click

from ziplm.options.options import Options
from ziplm.options.setting import DTYPES, REGIMES, Setting

Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULTS = {field.name: field.default for field in fields(Options) if field.default is not MISSING}


def option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """Return a click option with the default of the `Options` field of the same name."""
    field = next(name for name in names if name.startswith("--")).split("/")[0].strip("-").replace("-", "_")
    default = _DEFAULTS[field]
    if default not in (None, ()):
        settings = {"default": default, "show_default": True, **settings}
    return click.option(*names, **settings)


def options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Combine decorators into one, in the order in which --help lists the options."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def given(context: click.Context) -> dict[str, Any]:
    """Return the options given on the command line, by name, without defaults."""
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    }


def setting_of(
    batch_size: int | None, dtype: str, prompt_length: tuple[int, ...], **environment: Any
) -> Setting:
    """Return the setting from the values of `environment_options`, without --attention."""
    return Setting(batch_size=batch_size or 0, dtype=dtype, prompt_lengths=prompt_length, **environment)


data_options = options(
    option(
        "--train-file",
        metavar="FILE",
        help="Examples to calibrate and fine-tune on: csv, tsv, json, parquet or text.",
    ),
    option("--validation-file", metavar="FILE", help="Examples to evaluate on."),
    option("--eval-file", metavar="FILE", help="Other examples to evaluate on instead."),
    option("--text-column", multiple=True, metavar="NAME", help="Name of the text column; twice for pairs."),
    option("--label-column", metavar="NAME", help="Name of the column with labels."),
    option(
        "--max-length",
        type=click.IntRange(min=2),
        help="Maximum length of an example in tokens.  [default: --sequence-length]",
    ),
)

environment_options = options(
    option(
        "--regime",
        type=click.Choice(REGIMES),
        help="What to measure: a batch, single inputs of several lengths, or text generation.",
    ),
    option(
        "--batch-size",
        type=click.IntRange(min=1),
        default=None,
        show_default=False,
        help="Batch size used when measuring latency.  [default: 8; latency and generate 1]",
    ),
    option(
        "--sequence-length",
        type=click.IntRange(min=1),
        help="Length of the measured inputs in tokens, for throughput.",
    ),
    option(
        "--prompt-length",
        multiple=True,
        type=click.IntRange(min=1),
        help="Length of the measured inputs, for latency and generate; repeatable.  "
        "[default: 16, 64 and 128 where they fit]",
    ),
    option("--new-tokens", type=click.IntRange(min=1), help="Number of tokens to generate, for generate."),
    option(
        "--threads",
        type=click.IntRange(min=1),
        help="Threads of torch while measuring.  [default: torch's own number]",
    ),
    option("--device", help="Device such as cpu or cuda:0."),
    option("--dtype", type=click.Choice(DTYPES), help="Data type of the measured models."),
    option("--engine", type=click.Choice(["eager", "compile"]), help="Engine that runs the measured models."),
    option(
        "--attention",
        type=click.Choice(["eager", "sdpa", "flash_attention_2"]),
        help="Attention implementation.",
    ),
    option("--clock", type=click.Choice(["wall", "cpu"]), help="Use cpu on machines with other load."),
)

training_options = options(
    option(
        "--mode",
        type=click.Choice(["oneshot", "gradual"]),
        help="gradual fine-tunes after each target, and continues from there.",
    ),
    option("--preset", help="Hyper-parameters from the paper; see `ziplm presets`."),
    option("--dense-epochs", type=float, help="Epochs of fine-tuning the dense model first."),
    option(
        "--dense-steps", type=int, help="Steps of fine-tuning the dense model, instead of epochs; 0 for none."
    ),
    option("--epochs-per-step", type=float, help="Epochs of fine-tuning after each target."),
    option("--steps-per-target", type=int, help="Steps of fine-tuning after each target, instead of epochs."),
    option("--learning-rate", type=float, help="Initial learning rate of each fine-tuning."),
    option("--train-batch-size", type=click.IntRange(min=1), help="Batch size of fine-tuning."),
    option("--gradient-accumulation", type=click.IntRange(min=1), help="Forward passes per optimizer step."),
    option("--weight-decay", type=float, help="Weight decay of fine-tuning."),
    option("--dropout/--no-dropout", help="Use the model's dropout while fine-tuning."),
    option(
        "--precision",
        type=click.Choice(["float32", "bf16", "fp16"]),
        help="Numeric precision of fine-tuning on a GPU.",
    ),
    option("--task-weight", type=float, help="λ1, weight of the task's own loss."),
    option("--logit-weight", type=float, help="λ2, weight of the distillation of outputs."),
    option("--token-weight", type=float, help="λ3, weight of the distillation of hidden states."),
    option("--temperature", type=float, help="Temperature of the distillation of outputs."),
    option("--report-to", multiple=True, help="Experiment tracker, by its name in transformers; repeatable."),
)

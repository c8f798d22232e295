"""``ziplm presets``: the hyper-parameters of the paper."""

import json

import rich_click as click

from ziplm.options.presets import PRESETS, Preset
from ziplm.options.training import TrainingOptions


@click.command(epilog="Example: ziplm presets")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, by the names of the options.")
def presets(as_json: bool) -> None:
    """Show the hyper-parameters of the ZipLM paper's gradual runs."""
    from rich.console import Console
    from rich.table import Table

    if as_json:
        click.echo(json.dumps({name: preset.as_options() for name, preset in PRESETS.items()}, indent=1))
        return
    console = Console(highlight=False)
    for name, preset in PRESETS.items():
        table = Table(title=f"{name}: {preset.source}", title_justify="left", show_header=False)
        for heading, value in _described(preset).items():
            table.add_row(heading, value)
        console.print(table)


def _described(preset: Preset) -> dict[str, str]:
    between, loss = preset.between, preset.loss
    return {
        "speedups": " ".join(f"{target:g}x" for target in preset.targets),
        "training before pruning": _length(preset.before),
        "training after each target": _length(between),
        "learning rate": f"{between.learning_rate:g}",
        "schedule": between.schedule,
        "batch size": _batch(between),
        "tokens": str(preset.max_length),
        "weight decay": f"{between.weight_decay:g}",
        "dropout": "as in the model" if between.dropout else "off",
        "λ1 task": f"{loss.task:g}",
        "λ2 logit": f"{loss.logit:g}",
        "λ3 token": f"{loss.token:g}",
        "temperature": f"{loss.temperature:g}",
        "calibration samples": str(preset.calibration_samples),
    }


def _length(options: TrainingOptions) -> str:
    return f"{options.max_steps:,} steps" if options.max_steps > 0 else f"{options.epochs:g} epochs"


def _batch(options: TrainingOptions) -> str:
    total = options.batch_size * options.gradient_accumulation
    if options.gradient_accumulation == 1:
        return str(total)
    return f"{total} ({options.gradient_accumulation} x {options.batch_size})"

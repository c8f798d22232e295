"""``ziplm presets``: the hyper-parameters of the paper."""

import click
from rich.console import Console
from rich.table import Table

from ziplm.options.presets import PRESETS, Preset
from ziplm.options.training import TrainingOptions


@click.command(epilog="Example: ziplm presets")
def presets() -> None:
    """Show the hyper-parameters of the ZipLM paper's gradual runs."""
    table = Table()
    table.add_column("")
    for name in PRESETS:
        table.add_column(name, justify="right", overflow="fold")
    columns = [_described(preset) for preset in PRESETS.values()]
    for heading in columns[0]:
        table.add_row(heading, *(column[heading] for column in columns))
    console = Console(highlight=False)
    console.print(table)
    for name, preset in PRESETS.items():
        console.print(f"{name}: {preset.source}", markup=False)


def _described(preset: Preset) -> dict[str, str]:
    between, loss = preset.between, preset.loss
    return {
        "speedups": ", ".join(f"{target:g}x" for target in preset.targets),
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

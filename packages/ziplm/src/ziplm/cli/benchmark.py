"""``ziplm benchmark``: the measured speedup of one checkpoint over another."""

from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ziplm.architectures.checkpoint import load
from ziplm.cli.options import environment_options, setting_of
from ziplm.stages.measure import compare_models
from ziplm.stages.workload import environment_of, setting_for


@click.command(
    epilog="Example: ziplm benchmark models/dense runs/sst2/2x --batch-size 8 --sequence-length 128"
)
@click.argument("dense")
@click.argument("others", nargs=-1, required=True)
@environment_options
@click.option(
    "--precision", default=0.01, show_default=True, help="Relative error of the speedups at which to stop."
)
@click.option("--max-seconds", default=60.0, show_default=True, help="Time limit of the measurement.")
def benchmark(
    dense: str,
    others: tuple[str, ...],
    attention: str | None,
    precision: float,
    max_seconds: float,
    **environment: Any,
) -> None:
    """Measure how much faster OTHERS are than DENSE, in interleaved rounds.

    Each model is a checkpoint folder or a name on the hub, and may be any model that takes tokens. By
    default, a forward pass of the whole model on full-length random tokens is timed. With --regime latency,
    it is the mean over inputs of several lengths. With --regime generate, it is the median, over prompts of
    several lengths, of generating new tokens with a cache and top-k sampling.
    """
    setting = setting_of(**environment)
    environment_of(setting, attention)  # fails before anything is loaded
    options = {"attn_implementation": attention} if attention else {}
    models = {path: load(path, **options) for path in dict.fromkeys((dense, *others))}
    if len(models) < 1 + len(others):
        models = {f"{path} ({index})": load(path, **options) for index, path in enumerate((dense, *others))}
    setting = setting_for(setting, list(models.values()))
    console = Console(highlight=False)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=1.0)
        result = compare_models(
            models,
            setting,
            rel_error=precision,
            max_seconds=max_seconds,
            progress=lambda rounds, used: bar.update(task, completed=used, description=f"round {rounds}"),
        )
    made = setting.batch_size * setting.new_tokens if setting.regime == "generate" else 0
    table = Table()
    table.add_column("model")
    for heading in ("ms", *(["tokens/s"] if made else []), "speedup", "99 % interval", "parameters"):
        table.add_column(heading, justify="right")
    for name, timing in result.items():
        ratio = result.speedup(name)
        table.add_row(
            name,
            f"{timing.seconds * 1e3:.2f}",
            *([f"{made / timing.seconds:.1f}"] if made else []),
            f"{ratio.value:.2f}x",
            f"{ratio.low:.2f} – {ratio.high:.2f}",
            f"{sum(parameter.numel() for parameter in models[name].parameters()):,}",
        )
    console.print(table)
    console.print(f"{len(result.samples)} rounds, stopped by {result.stopped}", markup=False)
    console.print(str(environment_of(setting, attention)), markup=False, soft_wrap=True)

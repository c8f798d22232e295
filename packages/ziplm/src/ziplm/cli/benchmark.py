"""``ziplm benchmark``: the measured speedup of one checkpoint over another."""

import click
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ziplm.benchmarking import ENGINES, Setting, compare_models
from ziplm.checkpoint import load

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@click.command(
    epilog="Example: ziplm benchmark models/dense runs/sst2/2x --batch-size 8 --sequence-length 128"
)
@click.argument("dense")
@click.argument("others", nargs=-1, required=True)
@click.option("--batch-size", default=8, show_default=True, type=click.IntRange(min=1))
@click.option("--sequence-length", default=128, show_default=True, type=click.IntRange(min=1))
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--device", default="cpu", show_default=True, help="Such as cpu or cuda:0.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(list(DTYPES)))
@click.option("--engine", default="eager", show_default=True, type=click.Choice(list(ENGINES)))
@click.option(
    "--attention", type=click.Choice(["eager", "sdpa", "flash_attention_2"]), help="Implementation."
)
@click.option("--clock", default="wall", show_default=True, type=click.Choice(["wall", "cpu"]))
@click.option("--precision", default=0.01, show_default=True, help="Wanted relative error of the speedups.")
@click.option("--max-seconds", default=60.0, show_default=True, help="Longest time to measure.")
def benchmark(
    dense: str,
    others: tuple[str, ...],
    batch_size: int,
    sequence_length: int,
    threads: int,
    device: str,
    dtype: str,
    engine: str,
    attention: str | None,
    clock: str,
    precision: float,
    max_seconds: float,
) -> None:
    """Measure how much faster OTHERS are than DENSE, in interleaved rounds.

    Each is a folder with a checkpoint, or a name on the hub, of any model that takes tokens. What is
    timed is a forward pass of the whole model on full-length random tokens.
    """
    setting = Setting(batch_size, sequence_length, threads, device, DTYPES[dtype], engine, clock)  # type: ignore[arg-type]
    environment = setting.environment(attention)  # fails before anything is loaded
    options = {"attn_implementation": attention} if attention else {}
    models = {path: load(path, **options) for path in dict.fromkeys((dense, *others))}
    if len(models) < 1 + len(others):
        models = {f"{path} ({index})": load(path, **options) for index, path in enumerate((dense, *others))}
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
    table = Table()
    table.add_column("model")
    for heading in ("ms", "speedup", "99 % interval", "parameters"):
        table.add_column(heading, justify="right")
    for name, timing in result.items():
        ratio = result.speedup(name)
        table.add_row(
            name,
            f"{timing.seconds * 1e3:.2f}",
            f"{ratio.value:.2f}x",
            f"{ratio.low:.2f} – {ratio.high:.2f}",
            f"{sum(parameter.numel() for parameter in models[name].parameters()):,}",
        )
    console.print(table)
    console.print(f"{len(result.samples)} rounds, stopped by {result.stopped}", markup=False)
    console.print(str(environment), markup=False, soft_wrap=True)

"""``latency-profiler run``: profile a family of modules and save the table."""

from pathlib import Path
from typing import get_args

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from latency_profiler._clock import ClockName
from latency_profiler._cpu import int8_note
from latency_profiler._engines import EngineName, Quantization
from latency_profiler._environment import Environment
from latency_profiler._files import check_writable
from latency_profiler._table import LatencyTable
from latency_profiler.cli.show import print_tables

DTYPES = ("float32", "float16", "bfloat16", "float64")


@click.command(
    epilog="Example: latency-profiler run transformer_layer --batch 1 --sequence 16 --threads 1 "
    "--max-seconds 2 -o bert-base.json"
)
@click.argument("target")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("latency.json"),
    show_default=True,
    help="File to save the table to.",
)
@click.option(
    "--sizes",
    metavar="SIZES",
    help="Sizes to measure: a list (12,8,4,0), a range (12..0) or a geometric grid (3072*0.9^i), which "
    "stops at 1 % of its largest size and adds 0.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="SHAPE",
    help="Shape of an input, such as 8x128x768; repeat the option for several inputs. The first dimension is "
    "the batch size; if there are three, the second is the sequence length.",
)
@click.option(
    "--name",
    help="Name of the curve.  [default: name of the function; attention or ffn for a built-in block]",
)
@click.option("--batch", type=click.IntRange(1), help="Batch size of a built-in block.  [default: 8]")
@click.option(
    "--sequence", type=click.IntRange(1), help="Sequence length of a built-in block.  [default: 128]"
)
@click.option("--hidden", type=click.IntRange(1), help="Hidden size of a built-in block.  [default: 768]")
@click.option(
    "--heads", type=click.IntRange(1), help="Number of heads of the full attention block.  [default: 12]"
)
@click.option(
    "--intermediate", type=click.IntRange(1), help="Width of the full FFN block.  [default: 4 x hidden]"
)
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    default="float32",
    show_default=True,
    help="Dtype of the modules and inputs.",
)
@click.option("--device", default="cpu", show_default=True, help="Torch device, such as cpu, cuda or cuda:1.")
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="Number of threads of torch and of the engine.  [default: torch's own setting]",
)
@click.option(
    "--engine",
    type=click.Choice(get_args(EngineName)),
    default="eager",
    show_default=True,
    help="How modules are run: plain torch (eager), torch.compile (compile), or exported to ONNX Runtime "
    "(onnxruntime) or OpenVINO (openvino), which are extras.",
)
@click.option(
    "--quantize",
    type=click.Choice(get_args(Quantization)),
    help="Quantise the weights of matrix products; for the engines onnxruntime and openvino.",
)
@click.option(
    "--clock",
    type=click.Choice(get_args(ClockName)),
    default="wall",
    show_default=True,
    help="Elapsed time (wall) or CPU time of this process (cpu). On shared machines, use cpu and one thread.",
)
@click.option(
    "--rel-error",
    type=float,
    default=0.02,
    show_default=True,
    help="Stop when the relative error of every time is at most this.",
)
@click.option(
    "--min-rounds",
    type=int,
    default=60,
    show_default=True,
    help="Minimum number of rounds, unless the time limit is reached first.",
)
@click.option(
    "--max-seconds",
    type=float,
    default=240.0,
    show_default=True,
    help="Time limit of the measurement, excluding building and warm-up.",
)
def run(
    target: str,
    output: Path,
    sizes: str | None,
    shapes: tuple[str, ...],
    name: str | None,
    dtype: str,
    device: str,
    threads: int | None,
    engine: EngineName,
    quantize: Quantization | None,
    clock: ClockName,
    rel_error: float,
    min_rounds: int,
    max_seconds: float,
    **block: int | None,
) -> None:
    """Measure the latency of TARGET at every size and save it as a table.

    TARGET is either a function that takes a size and returns a module, given as PACKAGE.MODULE:FUNCTION, or a
    built-in block. PACKAGE.MODULE may be in the working folder.

    The built-in blocks are transformer_attention (the size is the number of heads), transformer_ffn (the size
    is the intermediate width) and transformer_layer (both). Their defaults are those of BERT-base.
    """
    check_writable(output)
    # Imported here because they need torch, which is slow to import; help pages do without.
    import torch

    from latency_profiler._engines import resolve_engine
    from latency_profiler._factory import on_device
    from latency_profiler._half import check_half_precision
    from latency_profiler._profile import Family, profile_families
    from latency_profiler.cli.targets import random_inputs, resolve_target, sequence_length_of, usable_device

    torch_dtype = getattr(torch, dtype)
    torch_device = usable_device(device)
    used_engine = resolve_engine(engine, quantize, threads)
    check_half_precision(torch_dtype, torch_device)
    builds, input_shapes = resolve_target(target, sizes, shapes, name, block)
    inputs = random_inputs(input_shapes, torch_dtype, torch_device)
    environment = Environment.current(
        torch_device,
        torch_dtype,
        input_shapes[0][0],
        sequence_length_of(input_shapes[0]),
        threads=threads,
        engine=used_engine,
        clock=clock,
        details={"inputs": ", ".join("x".join(map(str, shape)) for shape in input_shapes)},
    )
    with progress_bar() as bar:
        task = bar.add_task("preparing", total=1.0)

        def report(rounds: int, fraction: float) -> None:
            bar.update(task, completed=fraction, description=f"{rounds} rounds")

        curves = profile_families(
            {
                key: Family(on_device(build, torch_device, torch_dtype), values, inputs)
                for key, (build, values) in builds.items()
            },
            rel_error=rel_error,
            min_rounds=min_rounds,
            max_seconds=max_seconds,
            engine=used_engine,
            clock=clock,
            threads=threads,
            progress=report,
        )
    table = LatencyTable(environment, 0.0, curves)
    table.save(output)
    print_tables({output.stem: table})
    if quantize and (note := int8_note()):
        click.echo(note)
    click.echo(f"saved {output}")


def progress_bar() -> Progress:
    """Return a progress bar on stderr for the share of the time limit used; hidden if not on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

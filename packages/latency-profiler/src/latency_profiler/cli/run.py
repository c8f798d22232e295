"""``latency-profiler run``: profile a factory and save the table."""

import re
from pathlib import Path
from typing import Any, get_args

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from latency_profiler._clock import ClockName
from latency_profiler._engines import EngineName
from latency_profiler._environment import Environment
from latency_profiler._errors import OptionError
from latency_profiler._factory import import_factory, on_device
from latency_profiler._files import check_writable
from latency_profiler._half import check_half_precision
from latency_profiler._profile import Build, Family, profile_families
from latency_profiler._sizes import geometric_sizes, parse_sizes
from latency_profiler._table import LatencyTable
from latency_profiler.blocks import transformer_attention, transformer_ffn
from latency_profiler.cli.show import print_tables

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
READY = ("transformer_layer", "transformer_attention", "transformer_ffn")
Shape = tuple[int, ...]


@click.command(
    epilog="Example: latency-profiler run transformer_layer --batch 1 --sequence 16 --threads 1 "
    "--max-seconds 2 -o bert-base.json"
)
@click.argument("target")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default=Path("latency.json"), show_default=True
)
@click.option("--sizes", metavar="LIST", help="12,8,4,0 or 12..0 or 3072*0.9^i (down to 1 %, and 0).")
@click.option(
    "--shape", "shapes", multiple=True, metavar="8x128x768", help="Shape of an input; once per input."
)
@click.option("--name", help="Name of the curve; by default that of the factory.")
@click.option("--batch", type=click.IntRange(1), help="Batch size for a ready block.  [default: 8]")
@click.option("--sequence", type=click.IntRange(1), help="Sequence length for a ready block.  [default: 128]")
@click.option("--hidden", type=click.IntRange(1), help="Hidden size of a ready block.  [default: 768]")
@click.option("--heads", type=click.IntRange(1), help="Attention heads of a ready block.  [default: 12]")
@click.option(
    "--intermediate", type=click.IntRange(1), help="Widest FFN of a ready block.  [default: 4 x hidden]"
)
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True)
@click.option("--device", default="cpu", show_default=True, help="A torch device: cpu, cuda, cuda:1, …")
@click.option("--threads", type=click.IntRange(1), help="Threads of torch; by default as many as it has.")
@click.option("--engine", type=click.Choice(get_args(EngineName)), default="eager", show_default=True)
@click.option(
    "--clock",
    type=click.Choice(get_args(ClockName)),
    default="wall",
    show_default=True,
    help="cpu: CPU time of this process, for shared machines, one thread.",
)
@click.option(
    "--rel-error", type=float, default=0.02, show_default=True, help="Stop when every time is this sure."
)
@click.option("--min-rounds", type=int, default=60, show_default=True, help="But not before so many rounds.")
@click.option(
    "--max-seconds", type=float, default=240.0, show_default=True, help="Stop after so long in any case."
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
    clock: ClockName,
    rel_error: float,
    min_rounds: int,
    max_seconds: float,
    **block: int | None,
) -> None:
    """Profile TARGET at all its sizes and save a table.

    TARGET is a function PACKAGE.MODULE:BUILD that takes a size and returns a module, or a ready block:
    transformer_layer (both that follow), transformer_attention (size: heads), transformer_ffn (size: width);
    their defaults are BERT-base. Modules of the working folder can be imported.
    """
    check_writable(output)
    torch_device = checked_device(device)
    check_half_precision(DTYPES[dtype], torch_device)
    builds, input_shapes = what_to_build(target, sizes, shapes, name, block)
    inputs = random_inputs(input_shapes, DTYPES[dtype], torch_device)
    environment = Environment.current(
        torch_device,
        DTYPES[dtype],
        input_shapes[0][0],
        input_shapes[0][1] if len(input_shapes[0]) > 2 else None,
        threads=threads,
        engine=engine,
        clock=clock,
        details={"inputs": ", ".join("x".join(map(str, shape)) for shape in input_shapes)},
    )
    with progress_bar() as bar:
        task = bar.add_task("preparing", total=1.0)

        def report(rounds: int, fraction: float) -> None:
            bar.update(task, completed=fraction, description=f"{rounds} rounds")

        curves = profile_families(
            {
                key: Family(on_device(build, torch_device, DTYPES[dtype]), values, inputs)
                for key, (build, values) in builds.items()
            },
            rel_error=rel_error,
            min_rounds=min_rounds,
            max_seconds=max_seconds,
            engine=engine,
            clock=clock,
            threads=threads,
            progress=report,
        )
    table = LatencyTable(environment, 0.0, curves)
    table.save(output)
    print_tables({output.stem: table})
    click.echo(f"saved {output}")


def what_to_build(
    target: str, sizes: str | None, shapes: tuple[str, ...], name: str | None, block: dict[str, int | None]
) -> tuple[dict[str, tuple[Build, tuple[int, ...]]], list[Shape]]:
    """Factories with their sizes, by name of the curve, and the shapes of the inputs."""
    if target in READY:
        if shapes:
            raise OptionError(f"--shape does not go with {target}", "use --batch and --sequence")
        builds, shape = ready_block(target, sizes, block)
        input_shapes = [shape]
    else:
        if given := [option for option, value in block.items() if value is not None]:
            raise OptionError(f"--{given[0]} does not go with {target}", f"it is for {', '.join(READY)}")
        if sizes is None or not shapes:
            raise OptionError(f"{target} needs sizes and input shapes", "add --sizes 12..0 --shape 8x128x768")
        builds = {target.rpartition(":")[2]: (import_factory(target), parse_sizes(sizes))}
        input_shapes = [parse_shape(text) for text in shapes]
    if name is not None and len(builds) > 1:
        raise OptionError(f"--name does not go with {target}", "its curves are called attention and ffn")
    return {name or kind: build for kind, build in builds.items()}, input_shapes


def progress_bar() -> Progress:
    """A bar on stderr; it fills by the time limit and ends early when all times are sure."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def ready_block(
    target: str, sizes: str | None, block: dict[str, int | None]
) -> tuple[dict[str, tuple[Build, tuple[int, ...]]], Shape]:
    """The factories with their sizes, and the shape of the input."""
    hidden = block["hidden"] or 768
    heads, intermediate = block["heads"] or 12, block["intermediate"] or 4 * hidden
    builds: dict[str, tuple[Build, tuple[int, ...]]] = {
        "attention": (transformer_attention(hidden, heads), tuple(range(heads, -1, -1))),
        "ffn": (transformer_ffn(hidden), geometric_sizes(intermediate)),
    }
    if target != "transformer_layer":
        kind = target.removeprefix("transformer_")
        build, default_sizes = builds[kind]
        builds = {kind: (build, default_sizes if sizes is None else parse_sizes(sizes))}
    elif sizes is not None:
        raise OptionError("--sizes does not go with transformer_layer", "use --heads and --intermediate")
    return builds, (block["batch"] or 8, block["sequence"] or 128, hidden)


def parse_shape(text: str) -> Shape:
    """Read ``8x128x768``."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
        raise OptionError(
            f"shape {text!r} cannot be read", "write whole numbers from 1 up, such as 8x128x768"
        )
    return tuple(int(part) for part in text.split("x"))


def checked_device(text: str) -> torch.device:
    """A torch device that exists here."""
    try:
        device = torch.device(text)
        torch.empty(0, device=device)
    except Exception as error:
        raise OptionError(
            f"device {text!r} cannot be used here", "use cpu, or install torch for it"
        ) from error
    return device


def random_inputs(shapes: list[Shape], dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    """Standard normal inputs, the same every time."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)

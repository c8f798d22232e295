"""The targets of ``latency-profiler run``: their factories, sizes and inputs."""

import math
import os
import re
from typing import Any

import torch

from latency_profiler._errors import OptionError, shortened
from latency_profiler._factory import import_factory
from latency_profiler._profile import Build
from latency_profiler._sizes import checked_sizes, geometric_sizes, parse_sizes
from latency_profiler.blocks import transformer_attention, transformer_ffn

BUILT_IN = ("transformer_layer", "transformer_attention", "transformer_ffn")
Shape = tuple[int, ...]


def resolve_target(
    target: str, sizes: str | None, shapes: tuple[str, ...], name: str | None, block: dict[str, int | None]
) -> tuple[dict[str, tuple[Build, tuple[int, ...]]], list[Shape]]:
    """Return the factories and their sizes, by curve name, and the shapes of the inputs.

    Raises:
        OptionError: An option does not apply to this target, or a required option is missing.
    """
    if target in BUILT_IN:
        if shapes:
            raise OptionError(f"--shape cannot be used with {target}", "use --batch and --sequence")
        builds, shape = built_in_block(target, sizes, block)
        input_shapes = [shape]
    else:
        if given := [option for option, value in block.items() if value is not None]:
            raise OptionError(
                f"--{given[0]} cannot be used with {target}", f"it only applies to {', '.join(BUILT_IN)}"
            )
        if sizes is None or not shapes:
            raise OptionError(
                f"{target} needs sizes and input shapes",
                "add options such as --sizes 12..0 --shape 8x128x768",
            )
        builds = {target.rpartition(":")[2]: (import_factory(target), parse_sizes(sizes))}
        input_shapes = [parse_shape(text) for text in shapes]
    if name is not None and len(builds) > 1:
        raise OptionError(
            f"--name cannot be used with {target}", "it has two curves, which are named attention and ffn"
        )
    return {name or kind: build for kind, build in builds.items()}, input_shapes


def built_in_block(
    target: str, sizes: str | None, block: dict[str, int | None]
) -> tuple[dict[str, tuple[Build, tuple[int, ...]]], Shape]:
    """Return the factories and sizes of a built-in block, by curve name, and the shape of its input."""
    hidden = block["hidden"] or 768
    heads, intermediate = block["heads"] or 12, block["intermediate"] or 4 * hidden
    if target == "transformer_layer" and sizes is not None:
        raise OptionError("--sizes cannot be used with transformer_layer", "use --heads and --intermediate")
    given = None if sizes is None else parse_sizes(sizes)
    builds: dict[str, tuple[Build, tuple[int, ...]]] = {}
    if target != "transformer_ffn":
        every_head = checked_sizes(range(heads, -1, -1))
        builds["attention"] = (transformer_attention(hidden, heads), given or every_head)
    if target != "transformer_attention":
        builds["ffn"] = (transformer_ffn(hidden), given or geometric_sizes(intermediate))
    return builds, (block["batch"] or 8, block["sequence"] or 128, hidden)


def parse_shape(text: str) -> Shape:
    """Parse a shape such as ``8x128x768``."""
    if not re.fullmatch(r"[1-9]\d{0,17}(x[1-9]\d{0,17})*", text, re.ASCII):
        raise OptionError(
            f"cannot parse shape '{shortened(text, 60)}'",
            "write positive integers separated by x, such as 8x128x768",
        )
    return tuple(int(part) for part in text.split("x"))


def sequence_length_of(shape: Shape) -> int | None:
    """Return the second of three dimensions (batch, sequence, hidden); None for any other shape.

    The second dimension of a batch of images is the channels; with two dimensions, it is the features.
    """
    return shape[1] if len(shape) == 3 else None


def usable_device(text: str) -> torch.device:
    """Return the torch device with this name, or raise OptionError if it cannot be used."""
    try:
        device = torch.device(text)
        torch.empty(0, device=device)
    except Exception as error:
        raise OptionError(
            f"device {text!r:.60} cannot be used",
            "use cpu, or install a build of torch that supports the device",
        ) from error
    return device


def random_inputs(shapes: list[Shape], dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    """Draw standard normal inputs from a fixed seed.

    Raises:
        OptionError: They do not fit into memory.
    """
    generator = torch.Generator().manual_seed(0)
    size = 4 * sum(math.prod(shape) for shape in shapes)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**40
    if size > memory:  # allocating may succeed all the same, and filling then end the process
        names = ", ".join("x".join(map(str, shape)) for shape in shapes)
        raise OptionError(
            f"inputs of shape {shortened(names, 60)} take {size / 2**30:.3g} GiB, more than this machine has",
            "use a smaller batch or shape",
        )
    return tuple(torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)

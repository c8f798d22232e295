"""obs-structured: speed against loops over single columns, and errors on a real model."""

import argparse
from collections.abc import Callable
from functools import partial
from unittest import mock

import obs_quality
import torch
from harness import announce, cpu_seconds, peak_extra_megabytes, print_table
from obs_loops import algorithm_1_steps, full_products, tuned_groups, tuned_loop
from obs_structured import Moments, _blocked, prune

FFN_SHAPES = [(768, 3072), (1024, 4096)]
HEAD_SHAPES = [(384, 384, 32), (768, 768, 64), (1024, 1024, 64)]  # rows, columns, columns per head
MOMENT_WIDTHS = [384, 768, 1536, 3072]
DAMPING = 0.01


def layer(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight and Hessian (float64) as in an FFN: correlated inputs of different size, half zero."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs = normal(2 * columns, 64) @ normal(64, columns) / 8 + normal(2 * columns, columns)
    inputs = inputs.relu_() * normal(columns).exp()
    return normal(rows, columns) * normal(columns).exp(), 2 * inputs.mT @ inputs / len(inputs)


def gemm_rate() -> float:
    """Return the float64 operations per second of a large matrix product, the best of several runs."""
    matrix = torch.randn(2048, 2048, dtype=torch.float64)
    return 2 * 2048**3 / cpu_seconds(lambda: matrix @ matrix, repeats=5)


def operations(r: int, d: int) -> float:
    """Return the floating point operations of `prune` for single columns, counting matrix products only.

    Check of definiteness and inverse: 4/3 d³. Rows of A: d³/3. Rows of G: r d². Weights: r d².
    Errors: d³/3 + r d².
    """
    return 2 * d**3 + 3 * r * d**2


def ffn_speed(rows: int, columns: int) -> None:
    """Time single columns: all sizes of one FFN matrix."""
    weight, hessian = layer(rows, columns)
    damped = hessian + DAMPING * hessian.diagonal().mean() * torch.eye(columns, dtype=torch.float64)
    trace = prune(weight, hessian, damping=DAMPING)
    ours = cpu_seconds(lambda: prune(weight, hessian, damping=DAMPING))
    with_errors = cpu_seconds(lambda: prune(weight, hessian, damping=DAMPING).errors)
    rate = gemm_rate()
    orders: list[torch.Tensor] = []
    tuned = cpu_seconds(lambda: orders.append(tuned_loop(weight, damped)), repeats=1)
    shrinking = cpu_seconds(lambda: orders.append(tuned_loop(weight, damped, shrink=True)), repeats=1)
    steps = 24
    paper = cpu_seconds(lambda: algorithm_1_steps(weight, damped, 1, steps), repeats=1) * columns / steps

    print_table(
        f"{rows}x{columns}, single columns, all sizes, CPU seconds",
        ["", "seconds", "ratio to prune", "ratio to prune with errors"],
        [
            [name, f"{seconds:.2f}", f"{seconds / ours:.2f}", f"{seconds / with_errors:.2f}"]
            for name, seconds in {
                "prune": ours,
                "prune with the errors of all sizes": with_errors,
                "tuned in-place rank-1 loop": tuned,
                "tuned loop on shrinking matrices": shrinking,
                "Algorithm 1 as written": paper,
            }.items()
        ],
        note=f"Algorithm 1: time of {steps} steps, times {columns / steps:.0f}; all its steps cost the same.",
    )
    share = operations(rows, columns) / with_errors / rate
    extra = peak_extra_megabytes(lambda: prune(weight, hessian, damping=DAMPING).errors)
    print(f"same order as both loops: {all(torch.equal(order, trace.order) for order in orders)}")
    print(f"speed relative to a large matrix product ({rate / 1e9:.0f} Gflop/s): {share:.2f}")
    print(f"memory traffic of the rank-1 loop for A alone: {16 * columns**3 / tuned / 1e9:.0f} GB/s")
    print(f"peak extra memory: {extra:.0f} MB")
    for removed in (columns // 10, columns // 2, columns * 9 // 10):
        print(f"weight({removed}): {cpu_seconds(partial(trace.weight, removed)) * 1e3:.0f} ms")


def head_speed(rows: int, columns: int, size: int) -> None:
    """Time groups of columns: all sizes of one attention output matrix."""
    weight, hessian = layer(rows, columns)
    groups = columns // size
    damped = hessian + DAMPING * hessian.diagonal().mean() * torch.eye(columns, dtype=torch.float64)

    def ours() -> torch.Tensor:
        return prune(weight, hessian, size, damping=DAMPING).order

    def by_blocks() -> torch.Tensor:
        with mock.patch.object(_blocked, "WIDE", columns + 1):
            return ours()

    ways: dict[str, Callable[[], torch.Tensor]] = {
        "prune": ours,
        "with candidates and verification, as in version 0.1": by_blocks,
        "tuned in-place loop over heads, without errors": lambda: tuned_groups(weight, damped, size),
    }
    seconds = {name: cpu_seconds(way, 5) for name, way in ways.items()}
    seconds["Algorithm 1 as written"] = cpu_seconds(
        lambda: algorithm_1_steps(weight, damped, size, groups), repeats=1
    )
    print_table(
        f"{rows}x{columns}, {groups} heads of {size}, all sizes, CPU seconds",
        ["", "seconds", "ratio to prune"],
        [[name, f"{taken:.3f}", f"{taken / seconds['prune']:.1f}"] for name, taken in seconds.items()],
    )
    order = ours()
    print(f"same order in all ways: {all(torch.equal(way(), order) for way in ways.values())}")


def moments_speed(width: int, batch: int = 4096, count: int = 1) -> list[str]:
    """Time the second moments of float32 and float64 inputs; return a row of the table."""
    row = [str(width)]
    for dtype in (torch.float32, torch.float64):
        batches = [torch.randn(batch, width, dtype=dtype) for _ in range(count)]
        plain = cpu_seconds(partial(full_products, batches))
        seconds = cpu_seconds(partial(gathered, batches))
        product = cpu_seconds(partial(products_alone, batches))
        expected = 2 * full_products(batches) / (batch * count)
        gap = float((gathered(batches).hessian - expected).abs().max())
        row += [f"{seconds:.3f}", f"{plain / seconds:.2f}", f"{product / seconds:.2f}", f"{gap:.0e}"]
    return row


def gathered(batches: list[torch.Tensor]) -> Moments:
    """Return the moments of some batches (n, d)."""
    moments = Moments(batches[0].shape[1])
    for inputs in batches:
        moments.update(inputs)
    return moments


def products_alone(batches: list[torch.Tensor]) -> None:
    """Compute the full products of some batches, and nothing else."""
    for inputs in batches:
        _ = inputs.mT @ inputs


def main() -> None:
    """Run the parts named on the command line, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", choices=["speed", "moments", "quality", []], help="parts to run (all)"
    )
    parts = parser.parse_args().parts or ["speed", "moments", "quality"]
    announce("obs-structured", "obs-structured", "torch")
    if "speed" in parts:
        for shape in FFN_SHAPES:
            ffn_speed(*shape)
        for head_shape in HEAD_SHAPES:
            head_speed(*head_shape)
    if "moments" in parts:
        names = ["seconds", "0.1", "product", "gap"]
        print_table(
            "Moments.update of a batch of 4096 inputs, CPU seconds: float32, then float64",
            ["width", *names, *names],
            [moments_speed(width) for width in MOMENT_WIDTHS],
            note="CPU time of version 0.1, and of the full products alone, as ratios to ours. Gap: largest\n"
            "difference between the Hessians of version 0.1 and ours.",
        )
    if "quality" in parts:
        obs_quality.report()


if __name__ == "__main__":
    main()

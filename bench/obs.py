"""obs-structured: speed against loops over single columns, and errors on a real model."""

import argparse
from functools import partial

import obs_quality
import torch
from harness import announce, cpu_seconds, peak_extra_megabytes, print_table
from obs_loops import algorithm_1_steps, tuned_groups, tuned_loop
from obs_structured import prune

FFN_SHAPES = [(768, 3072), (1024, 4096)]
HEAD_SHAPES = [(768, 768), (1024, 1024)]
HEAD_SIZE = 64
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


def head_speed(rows: int, columns: int) -> None:
    """Time groups of 64 columns: all sizes of one attention output matrix."""
    weight, hessian = layer(rows, columns)
    groups = columns // HEAD_SIZE
    damped = hessian + DAMPING * hessian.diagonal().mean() * torch.eye(columns, dtype=torch.float64)
    trace = prune(weight, hessian, HEAD_SIZE, damping=DAMPING)
    ours = cpu_seconds(lambda: prune(weight, hessian, HEAD_SIZE, damping=DAMPING))
    tuned = cpu_seconds(lambda: tuned_groups(weight, damped, HEAD_SIZE))
    paper = cpu_seconds(lambda: algorithm_1_steps(weight, damped, HEAD_SIZE, groups), repeats=1)
    print_table(
        f"{rows}x{columns}, {groups} heads of {HEAD_SIZE}, all sizes, CPU seconds",
        ["", "seconds", "ratio to prune"],
        [
            ["prune", f"{ours:.3f}", "1.0"],
            ["tuned in-place loop over heads, without errors", f"{tuned:.3f}", f"{tuned / ours:.1f}"],
            ["Algorithm 1 as written", f"{paper:.2f}", f"{paper / ours:.1f}"],
        ],
    )
    order = tuned_groups(weight, damped, HEAD_SIZE)
    print(f"same order as the loop: {torch.equal(order, trace.order)}")


def main() -> None:
    """Run the parts named on the command line, or both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=["speed", "quality", []], help="parts to run (both)")
    parts = parser.parse_args().parts or ["speed", "quality"]
    announce("obs-structured", "obs-structured", "torch")
    if "speed" in parts:
        for shape in FFN_SHAPES:
            ffn_speed(*shape)
        for shape in HEAD_SHAPES:
            head_speed(*shape)
    if "quality" in parts:
        obs_quality.report()


if __name__ == "__main__":
    main()

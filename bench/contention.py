"""latency-profiler: what other processes do to the CPU times of a large model and of small ones.

Six layers of MiniLM are compared with smaller ones, each with a half, a quarter or a twelfth of the heads and
of the width, beside processes that multiply matrices, copy memory, or count. These run on the same core, on
another one, or three of them where the system puts them. All conditions take turns, so that slow changes of
the machine fall on all of them. The condition without competitors counts as quiet, which it only is if
nothing else runs: look at its share of the cores. Needs Linux and two cores.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from harness import announce, print_table
from latency_profiler import compare
from profiler import layers

FORK = "import os\nparent = os.getppid()\n"
WORK = {
    "multiply": "import numpy\na = numpy.ones((1024, 1024), numpy.float32)\nwork = lambda: a @ a",
    "copy": "import numpy\na, b = numpy.ones((2, 1 << 24))\nwork = lambda: numpy.copyto(a, b)",
    "count": "work = lambda: sum(range(1_000_000))",
}
SIZES = {"dense": (12, 1536), "half": (6, 768), "quarter": (3, 384), "twelfth": (1, 128)}
SMALLER = [name for name in SIZES if name != "dense"]


@contextmanager
def competitor(kind: str, core: int | None) -> Iterator[int]:
    """Start a paused process that works without end, and yield its number; it ends with this process."""
    code = f"{FORK}{WORK[kind]}\nwhile os.getppid() == parent:\n    work()"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        if core is not None:
            os.sched_setaffinity(child.pid, {core})
        os.kill(child.pid, signal.SIGSTOP)
        yield child.pid
    finally:
        child.kill()
        child.wait()


def conditions(stack: ExitStack, cores: Sequence[int]) -> dict[str, tuple[set[int], list[int]]]:
    """Return the cores to measure on and the competitors' process numbers, by name of the condition."""
    own, other = cores[0], cores[1]
    found: dict[str, tuple[set[int], list[int]]] = {"none": ({own}, [])}
    for kind in WORK:
        for place, core in (("same core", own), ("other core", other)):
            found[f"{kind}, {place}"] = ({own}, [stack.enter_context(competitor(kind, core))])
        three = [stack.enter_context(competitor(kind, None)) for _ in range(3)]
        found[f"{kind}, three"] = (set(cores), three)
    return found


def measure_all(cycles: int, seconds: float) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return samples (rounds, models) in CPU seconds and the share of the cores of others, by condition."""
    torch.manual_seed(0)
    models = {name: layers(heads, width, count=6) for name, (heads, width) in SIZES.items()}
    inputs = torch.randn(8, 128, 384)
    cores = sorted(os.sched_getaffinity(0))[:2]
    samples: dict[str, list[np.ndarray]] = {}
    shares: dict[str, list[float]] = {}
    with ExitStack() as stack:
        chosen = conditions(stack, cores)
        order = np.random.default_rng(0)
        for cycle in range(cycles):
            for name in order.permutation(list(chosen)):
                own, competitors = chosen[name]
                os.sched_setaffinity(0, own)
                for child in competitors:
                    os.kill(child, signal.SIGCONT)
                result = compare(
                    models, inputs, clock="cpu", threads=1, min_rounds=5, rel_error=1e-9, max_seconds=seconds
                )
                for child in competitors:
                    os.kill(child, signal.SIGSTOP)
                # While pinned to one core, only what others use of that core is known.
                samples.setdefault(name, []).append(result.samples)
                shares.setdefault(name, []).append(result.competition)
            print(f"cycle {cycle + 1} of {cycles}", flush=True)
    return (
        {name: np.concatenate(found) for name, found in samples.items()},
        {name: float(np.mean(found)) for name, found in shares.items()},
    )


def main() -> None:
    """Measure, and print the changes of times and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=6, help="times that each condition is measured (6)")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of each measurement (6)")
    options = parser.parse_args()
    announce("latency-profiler: competition", "torch")
    samples, shares = measure_all(options.cycles, options.seconds)
    times = {name: np.percentile(found, 20, axis=0) for name, found in samples.items()}
    quiet = times["none"]
    slower, changes = [], []
    for name, found in times.items():
        speedups, quiet_speedups = found[0] / found[1:], quiet[0] / quiet[1:]
        change = np.log(speedups) / np.log(quiet_speedups) - 1
        first = [name, f"{shares[name]:.0%}"]
        slower.append([*first, str(len(samples[name])), *(f"{value:+.1%}" for value in found / quiet - 1)])
        changes.append(
            [*first, *(f"{value:.2f}x" for value in speedups), *(f"{value:+.1%}" for value in change)]
        )
    columns = ["competitors", "share of others"]
    print_table("CPU time beside other processes, against none", [*columns, "rounds", *SIZES], slower)
    print_table(
        "Speedups, and changes of their logarithms",
        [*columns, *SMALLER, *SMALLER],
        changes,
        "share of others: of the cores that were measured on",
    )


if __name__ == "__main__":
    main()

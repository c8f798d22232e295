"""latency-profiler: accuracy of its measurements on a noisy machine.

``compare``: while another process keeps a core busy, a function is compared with itself, which should give a
ratio of 1, and with 5 % more of the same work, which should give 1.05. The baseline times the two functions
one after the other, as is usual.
``load``: two BERT layers of MiniLM's size are compared with layers of half and a quarter of their heads and
width, beside none, one and three busy processes, by both clocks, and by a wall clock that takes one sample of
each in a round. The true ratio is that of a quiet machine; the table shows how estimates move with the load.
``table``: two independent latency tables of a BERT-base layer are compared with each other.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from harness import CLOCK_HELP, announce, print_table
from latency_profiler import (
    Environment,
    Family,
    LatencyCurve,
    LatencyTable,
    WallClock,
    compare,
    geometric_sizes,
    profile_families,
)
from latency_profiler.blocks import transformer_attention, transformer_ffn
from numpy.typing import NDArray

ClockName = Literal["wall", "cpu"]

CLOCKS: tuple[ClockName, ...] = ("wall", "cpu")
BATCH, SEQUENCE, HIDDEN = 8, 128, 768
# Keeps a core busy until the parent process has ended for any reason.
SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
SHOWN = [
    *(("attention", size) for size in (12, 8, 4, 1, 0)),
    *(("ffn", size) for size in (3072, 1814, 1322, 302, 130, 76, 33, 0)),
]


@contextmanager
def competing_load() -> Iterator[None]:
    """Keep a core busy with another process."""
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        yield
    finally:
        child.kill()
        child.wait()


def work(amount: int) -> Callable[[], None]:
    """Return a function that computes `amount` products of small matrices."""
    matrix = torch.randn(192, 192, generator=torch.Generator().manual_seed(0))

    def run() -> None:
        for _ in range(amount):
            torch.mm(matrix, matrix)

    return run


def one_after_the_other(first: Callable[[], None], second: Callable[[], None], clock: ClockName) -> float:
    """Return the baseline's ratio: medians of 100 runs of the first, then 100 of the second function."""
    now = time.process_time if clock == "cpu" else time.perf_counter
    medians = []
    for function in (first, second):
        times = []
        for _ in range(100):
            start = now()
            function()
            times.append(now() - start)
        medians.append(statistics.median(times))
    return medians[1] / medians[0]


def bench_compare(repetitions: int, clock: ClockName) -> None:
    """Count how often the interval and the point estimate are right."""
    rows = []
    with competing_load():
        for label, amount, true in (("f with f", 20, 1.0), ("f with f + 5 %", 21, 1.05)):
            ratios, naive, seconds = [], [], []
            for repetition in range(repetitions):
                start = time.perf_counter()
                result = compare(
                    {"f": work(20), "g": work(amount)},
                    clock=clock,
                    threads=1,
                    seed=repetition,
                    max_seconds=30,
                )
                seconds.append(time.perf_counter() - start)
                ratios.append(result.ratio("g"))
                naive.append(one_after_the_other(work(20), work(amount), clock))
                print(
                    f"{label}, {repetition + 1} of {repetitions}: {ratios[-1]} in {seconds[-1]:.1f} s "
                    f"({result.stopped}); baseline {naive[-1]:.3f}",
                    flush=True,
                )
            judged = [(1.0 in ratio) == (true == 1.0) for ratio in ratios]
            near = [abs(ratio.value / true - 1) <= 0.03 for ratio in ratios]
            both = [right and close for right, close in zip(judged, near, strict=True)]
            rows.append(
                [
                    label,
                    f"{sum(judged)}/{repetitions}",
                    f"{sum(near)}/{repetitions}",
                    f"{sum(both)}/{repetitions}",
                    f"{min(ratio.value for ratio in ratios):.3f}–{max(ratio.value for ratio in ratios):.3f}",
                    f"{sum(abs(ratio / true - 1) <= 0.03 for ratio in naive)}/{repetitions}",
                    f"{min(naive):.3f}–{max(naive):.3f}",
                    f"{statistics.median(seconds):.1f}",
                ]
            )
    print_table(
        f"compare while another process keeps a core busy, {clock} clock",
        ["", "interval right", "within 3 %", "both", "estimates", "baseline in 3 %", "estimates", "s each"],
        rows,
        "goal: both right in 18 of 20; baseline: ratio of the medians of 100 runs, one after the other",
    )


class OneSampleClock(WallClock):
    """Elapsed time; as its name is not "wall", `compare` takes one sample of each variant in a round."""

    name = "wall, one sample"


def layers(heads: int, width: int, count: int = 2) -> torch.nn.Module:
    """Return BERT layers of MiniLM's hidden size."""
    blocks = [(transformer_attention(384, 12)(heads), transformer_ffn(384)(width)) for _ in range(count)]
    return torch.nn.Sequential(*(block for pair in blocks for block in pair)).eval()


def bench_load(seconds: float) -> None:
    """Print the speedups of smaller models under different load, by both clocks."""
    torch.manual_seed(0)
    models = {"dense": layers(12, 1536), "half": layers(6, 768), "quarter": layers(3, 300)}
    inputs = torch.randn(2, 64, 384)
    rows = []
    for processes in (0, 1, 3):
        with ExitStack() as stack:
            for _ in range(processes):
                stack.enter_context(competing_load())
            for clock in (*CLOCKS, OneSampleClock()):
                result = compare(models, inputs, clock=clock, threads=1, max_seconds=seconds)
                low = np.percentile(result.samples, 5, axis=0)
                rows.append(
                    [
                        f"{processes} busy, {clock if isinstance(clock, str) else clock.name}",
                        str(len(result.samples)),
                        *(str(result.speedup(name)) for name in ("half", "quarter")),
                        f"{low[0] / low[1]:.3f}, {low[0] / low[2]:.3f}",
                        f"{1e3 * result['dense'].seconds:.2f}",
                        f"{os.getloadavg()[0]:.1f}",
                    ]
                )
                print(" ".join(rows[-1]), flush=True)
    print_table(
        "Speedups under load, two layers of MiniLM at 2 x 64, one thread",
        ["load, clock", "rounds", "half", "quarter", "5th percentiles", "dense ms", "load average"],
        rows,
        "the first row counts as quiet only if its load average is below 1",
    )


def bert_base_table(clock: ClockName, seed: int) -> LatencyTable:
    """Return a table of attention with 12 to 0 heads, and of an FFN with the paper's 44 widths and 0."""
    inputs = torch.randn(BATCH, SEQUENCE, HIDDEN, generator=torch.Generator().manual_seed(seed))
    curves = profile_families(
        {
            "attention": Family(transformer_attention(HIDDEN, 12), range(12, -1, -1), inputs),
            "ffn": Family(transformer_ffn(HIDDEN), geometric_sizes(4 * HIDDEN), inputs),
        },
        clock=clock,
        threads=1,
        seed=seed,
    )
    environment = Environment.current(batch_size=BATCH, sequence_length=SEQUENCE, threads=1, clock=clock)
    return LatencyTable(environment, 0.0, curves)


def bench_table(clock: ClockName, folder: Path | None) -> None:
    """Measure two tables and print their differences."""
    tables, seconds = [], []
    for seed in (0, 1):
        start = time.perf_counter()
        tables.append(bert_base_table(clock, seed))
        seconds.append(time.perf_counter() - start)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in zip(("first", "second"), tables, strict=True):
            table.save(folder / f"{name}.json")
    first, second = (table.curves for table in tables)
    rows = []
    for kind, size in SHOWN:
        a, b = first[kind](size), second[kind](size)
        speedup = first[kind](first[kind].sizes[0]) / a
        rows.append(
            [f"{kind} {size}", f"{1e3 * a:.2f}", f"{1e3 * b:.2f}", f"{b / a - 1:+.1%}", f"{speedup:.1f}x"]
        )
    changes = {kind: difference(first[kind], second[kind]) for kind in first}
    every = np.concatenate(list(changes.values()))
    for label, values in {**changes, "all sizes": every}.items():
        rows.append([f"{label}: median, worst", "", "", f"{np.median(values):.1%}, {values.max():.1%}", ""])
    rounds = [table.curves["ffn"].timings[0].runs for table in tables]
    spread = np.median(
        [timing.spread for table in tables for curve in table.curves.values() for timing in curve.timings]
    )
    loads = [table.environment.load_average for table in tables]
    print_table(
        f"BERT-base layer at {BATCH} x {SEQUENCE}, two independent tables, {clock} clock",
        ["size", "first ms", "second ms", "difference", "speedup"],
        rows,
        f"goal: 3 % median, 6 % worst, under 300 s; took {seconds[0]:.0f} and {seconds[1]:.0f} s, "
        f"{rounds[0]} and {rounds[1]} rounds;\n"
        f"median spread of samples {spread:.0%}, load average {loads[0]} and {loads[1]}",
    )


def difference(first: LatencyCurve, second: LatencyCurve) -> NDArray[np.float64]:
    """Return the relative difference at every size."""
    return np.array([abs(b / a - 1) for a, b in zip(first.seconds, second.seconds, strict=True)])


def main() -> None:
    """Run the part named on the command line, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=["compare", "load", "table"], help="part to run (all)")
    parser.add_argument("--repetitions", type=int, default=20, help="repetitions of compare (20)")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="cpu", help=CLOCK_HELP)
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of each comparison of load (30)")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="folder to save the two tables in")
    options = parser.parse_args()
    announce("latency-profiler", "torch", "scipy")
    if options.part in (None, "compare"):
        bench_compare(options.repetitions, options.clock)
    if options.part in (None, "load"):
        bench_load(options.seconds)
    if options.part in (None, "table"):
        bench_table(options.clock, options.save)


if __name__ == "__main__":
    main()

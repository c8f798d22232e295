"""How far can the profiler be trusted on a noisy machine?

``compare``: is a callable compared with itself found equal, and with 5 % more of the same work 1.05 times
slower, while another process spins on a core? The baseline times the two one after the other, as is usual.
``table``: do two independent tables of a BERT-base layer agree?
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from harness import announce, print_table
from latency_profiler import (
    Environment,
    Family,
    LatencyCurve,
    LatencyTable,
    compare,
    geometric_sizes,
    profile_families,
)
from latency_profiler.blocks import transformer_attention, transformer_ffn
from numpy.typing import NDArray

ClockName = Literal["wall", "cpu"]

BATCH, SEQUENCE, HIDDEN = 8, 128, 768
# Spins until its parent is gone, however that ended.
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
    """One other process that spins on a core."""
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        yield
    finally:
        child.kill()
        child.wait()


def work(amount: int) -> Callable[[], None]:
    """`amount` products of small matrices."""
    matrix = torch.randn(192, 192, generator=torch.Generator().manual_seed(0))

    def run() -> None:
        for _ in range(amount):
            torch.mm(matrix, matrix)

    return run


def one_after_the_other(first: Callable[[], None], second: Callable[[], None], clock: ClockName) -> float:
    """The baseline: the ratio of the medians of 100 runs of one and then of the other, by the same clock."""
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
    """Count how often the interval and the point are right."""
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
                    f"({result.stopped}); in turn {naive[-1]:.3f}",
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
        f"compare beside a competing load, {clock} clock",
        ["", "1.0 judged right", "within 3 %", "both", "points", "in turn: within 3 %", "points", "s each"],
        rows,
        "wanted: both right in 18 of 20; in turn: ratio of the medians of 100 runs, one after the other",
    )


def bert_base_table(clock: ClockName, seed: int) -> LatencyTable:
    """Attention with 12..0 heads and FFN with the paper's 44 widths and 0."""
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
    """Measure twice and say how far apart the two are."""
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
    changes = {kind: apart(first[kind], second[kind]) for kind in first}
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
        ["size", "first ms", "second ms", "apart", "speedup"],
        rows,
        f"wanted: 3 % median, 6 % worst, under 300 s; took {seconds[0]:.0f} and {seconds[1]:.0f} s, "
        f"{rounds[0]} and {rounds[1]} rounds;\n"
        f"median spread of samples {spread:.0%}, load average {loads[0]} and {loads[1]}",
    )


def apart(first: LatencyCurve, second: LatencyCurve) -> NDArray[np.float64]:
    """Relative difference at every size."""
    return np.array([abs(b / a - 1) for a, b in zip(first.seconds, second.seconds, strict=True)])


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="?", choices=["compare", "table"], help="one of the two (default: both)"
    )
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="cpu", help="default: cpu, for shared machines"
    )
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="keep the two tables there")
    options = parser.parse_args()
    announce("latency-profiler", "torch", "scipy")
    if options.what in (None, "compare"):
        bench_compare(options.repetitions, options.clock)
    if options.what in (None, "table"):
        bench_table(options.clock, options.save)


if __name__ == "__main__":
    main()

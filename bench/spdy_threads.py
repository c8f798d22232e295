"""CPU time of a search on a busy machine, with and without OMP_NUM_THREADS=1. A part of bench/spdy.py."""

import os
import statistics
import subprocess
import sys
from contextlib import ExitStack

from harness import print_table

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
SPIN = "while True: pass"
SEARCH = """
import resource
import numpy as np
from spdy_search import Problem, search

rng = np.random.default_rng(0)
costs = [np.sort(rng.random(30))[::-1] for _ in range(48)]
priors = [np.sort(rng.random(30)) for _ in range(48)]
factors = rng.lognormal(size=48)
problem = Problem(costs, priors, sum(row[0] for row in costs) / 3)
before = resource.getrusage(resource.RUSAGE_SELF)
search(problem, lambda levels: problem.prior(levels, factors), evaluations=50)
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
"""


def bench_threads(repeats: int) -> None:
    """Print the CPU seconds of 50 evaluations while a busy process occupies every core."""
    plain = {name: value for name, value in os.environ.items() if name not in THREADS}
    one = {**plain, **dict.fromkeys(THREADS, "1")}
    with ExitStack() as busy:
        for _ in range(os.cpu_count() or 1):
            process = busy.enter_context(subprocess.Popen([sys.executable, "-c", SPIN]))
            busy.callback(process.kill)
        pairs = [(_search_seconds(one), _search_seconds(plain)) for _ in range(repeats)]
    with_limit, without = (statistics.median(column) for column in zip(*pairs, strict=True))
    print_table(
        f"50 evaluations of search while {os.cpu_count()} processes keep all cores busy, median of {repeats}",
        ["", "CPU s with OMP_NUM_THREADS=1", "CPU s without", "ratio"],
        [["48 modules, 30 levels", f"{with_limit:.2f}", f"{without:.2f}", f"{without / with_limit:.2f}"]],
        note="Goal: a ratio of at most 1.5.",
    )


def _search_seconds(environment: dict[str, str]) -> float:
    """Run the search in a new process, and return its CPU seconds."""
    done = subprocess.run(
        [sys.executable, "-c", SEARCH], env=environment, check=True, capture_output=True, text=True
    )
    return float(done.stdout)

"""Freed memory stays in the process during a measurement."""

import subprocess
import sys

import pytest

# Setting the thresholds, here to their initial values in glibc, stops glibc from adapting them.
PROGRAM = """
import ctypes, resource, sys
from contextlib import nullcontext
import torch
from latency_profiler import _memory

for threshold in (_memory.M_MMAP_THRESHOLD, _memory.M_TRIM_THRESHOLD):
    ctypes.CDLL(None).mallopt(threshold, 128 * 1024)
with _memory.keep_freed_memory() if sys.argv[1] == "kept" else nullcontext():
    for turn in range(30):
        if turn == 10:  # the first ten turns are the warm-up
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tensors = [torch.full((2**22,), 1.0) for _ in range(3)]  # 16 MiB each
        del tensors
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(mode: str) -> int:
    """Count the page faults of a process that allocates and frees memory; `mode` is "kept" or "not kept"."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
def test_no_page_faults_while_freed_memory_is_kept() -> None:
    assert page_faults("kept") < 100
    assert page_faults("not kept") > 20 * 3 * 2**24 / 65536  # control, for pages of up to 64 KiB

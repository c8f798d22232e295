"""Freed memory stays with the process while it is measured."""

import subprocess
import sys

import pytest

# The thresholds are set to glibc's first ones, which then no longer move by themselves.
PROGRAM = """
import ctypes, resource, sys
from contextlib import nullcontext
import torch
from latency_profiler import _memory

for threshold in (_memory.M_MMAP_THRESHOLD, _memory.M_TRIM_THRESHOLD):
    ctypes.CDLL(None).mallopt(threshold, 128 * 1024)
with _memory.kept_memory() if sys.argv[1] == "kept" else nullcontext():
    for turn in range(30):
        if turn == 10:  # the first ones are the warm-up
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tensors = [torch.full((2**22,), 1.0) for _ in range(3)]  # 16 MiB each
        del tensors
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the thresholds are those of glibc")
def test_calls_within_take_no_page_faults() -> None:
    assert page_faults("kept") < 100
    assert page_faults("not kept") > 20 * 3 * 2**24 / 65536  # control; pages of up to 64 KiB

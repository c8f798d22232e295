"""Features of the CPU that latencies depend on, such as instructions for int8."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

INT8_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"})
"""Flags in /proc/cpuinfo of instructions that multiply and add int8 numbers in one step."""


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the instruction sets that the CPU announces; empty if the system does not say."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return frozenset()
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def has_int8_instructions() -> bool:
    """Return whether the CPU has instructions for int8 dot products, such as VNNI, AMX or ARM's dotprod.

    Without them, int8 saves memory, but can be slower than float32. Where the system does not list them, the
    answer is yes for an Apple CPU, all of which have them, and else no.
    """
    if flags := cpu_flags():
        return bool(flags & INT8_FLAGS)
    return platform.system() == "Darwin" and platform.machine() == "arm64"


def int8_note() -> str:
    """Return one line that explains why int8 may be slow here, or "" if the CPU is made for it."""
    if has_int8_instructions():
        return ""
    return (
        "This CPU has no instructions for int8 dot products (VNNI, AMX or ARM dotprod), so that int8 can be "
        "slower than float32; smaller modules need no such instructions."
    )

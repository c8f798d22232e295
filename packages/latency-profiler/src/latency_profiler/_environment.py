"""Environment: where a table was measured, and in what two environments differ."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from latency_profiler._engines import Engine, EngineName, resolve_engine
from latency_profiler._errors import OptionError, require
from latency_profiler._json import NUMBER, checked_fields, checked_kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from latency_profiler._clock import Clock, ClockName


class Difference(NamedTuple):
    """One thing in which two environments differ."""

    what: str
    here: object
    there: object

    def __str__(self) -> str:
        return f"{self.what} {self.here} here, {self.there} there"


@dataclass(frozen=True)
class Environment:
    """Everything that latencies depend on, as far as it can be known.

    Attributes:
        device: Type of the torch device: cpu, cuda, …
        device_name: Name of the CPU or accelerator.
        capability: Instruction set that torch uses on a CPU (AVX2, AVX512, …); "" elsewhere.
        cores: Cores that this process may use.
        system: Operating system and architecture.
        threads: Threads of torch.
        dtype: Name of the dtype: float32, …
        engine: Name of the engine.
        versions: Of Python and of the packages that the engine names.
        clock: Which clock was read.
        batch_size: Of the inputs, if told.
        sequence_length: Of the inputs, if told.
        details: Whatever else matters: the attention implementation, the lengths of prompt and generation.
        load_average: Mean number of running processes during the minute before; never a difference.
    """

    device: str
    device_name: str
    capability: str
    cores: int
    system: str
    threads: int
    dtype: str
    engine: str
    versions: Mapping[str, str]
    clock: str = "wall"
    batch_size: int | None = None
    sequence_length: int | None = None
    details: Mapping[str, str | int | float] = field(default_factory=dict)
    load_average: float | None = None

    @classmethod
    def current(
        cls,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        batch_size: int | None = None,
        sequence_length: int | None = None,
        *,
        threads: int | None = None,
        engine: EngineName | Engine = "eager",
        clock: ClockName | Clock = "wall",
        details: Mapping[str, str | int | float] | None = None,
    ) -> Environment:
        """The environment of this process; `threads` None means as many as torch has now."""
        device, engine = torch.device(device), resolve_engine(engine)
        for name, value in (("batch_size", batch_size), ("sequence_length", sequence_length)):
            require(
                value is None or value >= 1, f"{name} is {value}", "use a whole number from 1 up, or None"
            )
        return cls(
            device=device.type,
            device_name=_device_name(device),
            capability=torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else "",
            cores=_usable_cores(),
            system=f"{platform.system()} {platform.machine()}",
            threads=torch.get_num_threads() if threads is None else threads,
            dtype=str(dtype).removeprefix("torch."),
            engine=engine.name,
            versions={"python": platform.python_version(), **engine.versions()},
            clock=_clock_name(clock, device),
            batch_size=batch_size,
            sequence_length=sequence_length,
            details=dict(details or {}),
            load_average=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        )

    def differences(self, other: Environment) -> list[Difference]:
        """In what `other` differs from this one; the load average does not count."""
        here, there = self._flat(), other._flat()
        return [
            Difference(what, here.get(what), there.get(what))
            for what in {**here, **there}
            if here.get(what) != there.get(what)
        ]

    def _flat(self) -> dict[str, object]:
        """One entry per thing to compare: versions and details singly."""
        values = self.to_dict()
        del values["load_average"]
        versions, details = values.pop("versions"), values.pop("details")
        return {**values, **{f"{name} version": value for name, value in versions.items()}, **details}

    def to_dict(self) -> dict[str, Any]:
        """The fields, as plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Environment:
        """The inverse of `to_dict`; TableError if a field is missing or of another kind."""
        environment = cls(**checked_fields(values, _KINDS))
        for name, value in environment.versions.items():
            checked_kind(f"the version of {name}", value, (str,))
        for name, detail in environment.details.items():
            checked_kind(name, detail, (str, *NUMBER))
        return environment

    def __str__(self) -> str:
        shape = [f"batch {self.batch_size}"] if self.batch_size else []
        shape += [f"sequence {self.sequence_length}"] if self.sequence_length else []
        name = f"{self.device_name} ({self.capability})" if self.capability else self.device_name
        versions = ", ".join(f"{name} {value}" for name, value in self.versions.items())
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        parts = [
            f"{self.device}: {name}",
            threads,
            self.dtype,
            self.engine,
            *shape,
            f"{self.clock} clock",
            versions,
        ]
        return ", ".join(parts + [f"{key} {value}" for key, value in self.details.items()])


_NOTHING = type(None)
_KINDS: dict[str, tuple[type, ...]] = {entry.name: (str,) for entry in fields(Environment)} | {
    "cores": (int,),
    "threads": (int,),
    "versions": (dict,),
    "batch_size": (int, _NOTHING),
    "sequence_length": (int, _NOTHING),
    "details": (dict,),
    "load_average": (*NUMBER, _NOTHING),
}


def _clock_name(clock: ClockName | Clock, device: torch.device) -> str:
    if not isinstance(clock, str):
        return clock.name
    return "device" if clock == "wall" and device.type != "cpu" else clock


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return _cpu_name()
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != device.type:
        raise OptionError(
            f"there is no {device.type} device here", "use device 'cpu', or install torch for it"
        )
    module = torch.get_device_module(device)
    return str(module.get_device_name(device)) if hasattr(module, "get_device_name") else device.type


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return (
            subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "Apple CPU"
        )
    return platform.processor() or platform.machine()

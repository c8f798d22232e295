"""Description of the environment that latencies are measured in. Only `Environment.current` needs torch."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from latency_profiler._competition import usable_cores
from latency_profiler._errors import OptionError, require
from latency_profiler._json import NUMBER, check_least, check_type, checked_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from latency_profiler._clock import Clock, ClockName
    from latency_profiler._engines import Engine, EngineName


class Difference(NamedTuple):
    """One property in which two environments differ.

    Attributes:
        what: Name of the property.
        here: Value in the environment whose `differences` method was called; None if it has no such property.
        there: Value in the other environment; None if it has no such property.
    """

    what: str
    here: object
    there: object

    def __str__(self) -> str:
        return f"{self.what} {self.here} here, {self.there} there"


@dataclass(frozen=True)
class Environment:
    """Hardware, software and input settings that latencies depend on.

    Attributes:
        device: Type of the torch device: cpu, cuda, …
        device_name: Name of the CPU or accelerator.
        capability: Instruction set that torch uses on a CPU (AVX2, AVX512, …); "" on other devices.
        cores: Number of CPU cores available to the process.
        system: Operating system and architecture.
        threads: Number of threads that compute, of torch or of the engine.
        dtype: Name of the dtype: float32, …
        engine: Name of the engine.
        quantization: Quantisation of the weights, such as "int8"; None for none.
        versions: Versions of Python and of the packages reported by the engine, by name.
        clock: Name of the clock.
        batch_size: Batch size of the inputs, or None if not given.
        sequence_length: Sequence length of the inputs, or None if not given.
        details: Other settings that matter, such as the attention implementation or the prompt length.
        load_average: System load over the last minute, or None if unknown; ignored by `differences`.
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
    quantization: str | None = None
    clock: str = "wall"
    batch_size: int | None = None
    sequence_length: int | None = None
    details: Mapping[str, str | int | float] = field(default_factory=dict)
    load_average: float | None = None

    @classmethod
    def current(
        cls,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | str = "float32",
        batch_size: int | None = None,
        sequence_length: int | None = None,
        *,
        threads: int | None = None,
        engine: EngineName | Engine = "eager",
        clock: ClockName | Clock = "wall",
        details: Mapping[str, str | int | float] | None = None,
    ) -> Environment:
        """Describe the environment of this process.

        Args:
            device: Device that the work runs on.
            dtype: Dtype of the modules and inputs, or its name, such as "float32".
            batch_size: Batch size of the inputs.
            sequence_length: Sequence length of the inputs.
            threads: Number of threads used for measuring; None takes that of the engine object, else torch's
                current setting.
            engine: Engine, or its name.
            clock: Clock, or its name.
            details: Other settings that matter, by name.

        Raises:
            OptionError: The device does not exist on this machine, the dtype or the engine is unknown, a
                batch size or sequence length is below 1, or the engine object has another number of threads.
            MissingExtra: A package of the engine is not installed.
        """
        import torch

        from latency_profiler._engines import resolve_engine
        from latency_profiler._threads import resolve_threads

        device, engine = torch.device(device), resolve_engine(engine)
        for name, value in (("batch_size", batch_size), ("sequence_length", sequence_length)):
            require(value is None or value >= 1, f"{name} is {value}", "use a positive integer, or None")
        return cls(
            device=device.type,
            device_name=_device_name(device),
            capability=torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else "",
            cores=len(usable_cores()),
            system=f"{platform.system()} {platform.machine()}",
            threads=resolve_threads(threads, engine) or torch.get_num_threads(),
            dtype=_dtype_name(dtype),
            engine=engine.name,
            quantization=getattr(engine, "quantize", None),
            versions={"python": platform.python_version(), **engine.versions()},
            clock=_clock_name(clock, device),
            batch_size=batch_size,
            sequence_length=sequence_length,
            details={**getattr(engine, "details", dict)(), **(details or {})},
            load_average=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        )

    def differences(self, other: Environment) -> list[Difference]:
        """List the properties in which `other` differs from this environment, ignoring the load average."""
        here, there = self._comparable(), other._comparable()
        return [
            Difference(what, here.get(what), there.get(what))
            for what in {**here, **there}
            if here.get(what) != there.get(what)
        ]

    def _comparable(self) -> dict[str, object]:
        """Return the properties to compare, with one entry for each version and each detail."""
        values = self.to_dict()
        del values["load_average"]
        versions, details = values.pop("versions"), values.pop("details")
        return {**values, **{f"{name} version": value for name, value in versions.items()}, **details}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values that can be written as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Environment:
        """Rebuild an environment from the result of `to_dict`.

        Raises:
            TableError: A field is missing, unknown, of the wrong type or out of range.
        """
        if isinstance(values, dict):  # tables of version 0.1 know no quantisation
            values = {"quantization": None, **values}
        environment = cls(**checked_fields(values, _FIELD_TYPES))
        check_least(values, _LEAST)
        for name, value in environment.versions.items():
            check_type(f"the version of {name}", value, (str,))
        for name, detail in environment.details.items():
            check_type(name, detail, (str, *NUMBER))
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
            f"{self.engine} {self.quantization}" if self.quantization else self.engine,
            *shape,
            f"{self.clock} clock",
            versions,
        ]
        return ", ".join(parts + [f"{key} {value}" for key, value in self.details.items()])


_NONE = type(None)
_FIELD_TYPES: dict[str, tuple[type, ...]] = {entry.name: (str,) for entry in fields(Environment)} | {
    "cores": (int,),
    "threads": (int,),
    "versions": (dict,),
    "quantization": (str, _NONE),
    "batch_size": (int, _NONE),
    "sequence_length": (int, _NONE),
    "details": (dict,),
    "load_average": (*NUMBER, _NONE),
}
_LEAST = {"cores": 1, "threads": 1, "batch_size": 1, "sequence_length": 1, "load_average": 0}


def _dtype_name(dtype: torch.dtype | str) -> str:
    import torch

    name = str(dtype).removeprefix("torch.")
    require(
        isinstance(getattr(torch, name, None), torch.dtype),
        f"unknown dtype {name!r}",
        "use a torch dtype or its name, such as float32",
    )
    return name


def _clock_name(clock: ClockName | Clock, device: torch.device) -> str:
    if not isinstance(clock, str):
        return clock.name
    return "device" if clock == "wall" and device.type != "cpu" else clock


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return _cpu_name()
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != device.type:
        raise OptionError(
            f"there is no {device.type} device on this machine",
            f"use device 'cpu', or install a build of torch that supports {device.type}",
        )
    module = torch.get_device_module(device)
    return str(module.get_device_name(device)) if hasattr(module, "get_device_name") else device.type


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return (
            subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "Apple CPU"
        )
    return platform.processor() or platform.machine()

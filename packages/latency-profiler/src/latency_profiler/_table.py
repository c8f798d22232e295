"""Latency table of a model: the time of its modules at every size, and where it was measured."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latency_profiler._curve import LatencyCurve
from latency_profiler._environment import Environment
from latency_profiler._errors import EnvironmentMismatch, OptionError, ProfilerError, TableError, shortened
from latency_profiler._files import atomic_write
from latency_profiler._json import NUMBER, checked_fields, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT = "latency-profiler table"
VERSION = 1
_FIELD_TYPES = {
    "format": (str,),
    "version": (int,),
    "environment": (dict,),
    "fixed": NUMBER,
    "curves": (dict,),
}


@dataclass(frozen=True)
class LatencyTable:
    """Latency of a model as a sum: a fixed part, and the time of each module at its size.

    Attributes:
        environment: Environment that the table was measured in.
        fixed: Seconds spent outside the modules, such as in embeddings and head.
        curves: Latency curves by kind of module: ``{"attention": curve, "ffn": curve}``.
    """

    environment: Environment
    fixed: float
    curves: Mapping[str, LatencyCurve]

    def __post_init__(self) -> None:
        if not (math.isfinite(self.fixed) and self.fixed >= 0):
            raise TableError(
                f"the fixed part is {self.fixed} seconds", "use a finite number that is not negative"
            )
        if not self.curves:
            raise TableError("the table has no curves", "give at least one curve, by kind of module")

    def predict(self, sizes: Mapping[str, Sequence[float]]) -> float:
        """Predict the latency of a model in seconds, interpolating between measured sizes.

        Args:
            sizes: Size of every module, by kind: ``{"attention": [12, 8], "ffn": [3072, 33]}``.

        Raises:
            OptionError: The table has no curve for a kind.
            SizeError: A size lies outside the measured range.
        """
        return math.fsum([self.fixed, *(self._curve(kind)(size) for kind in sizes for size in sizes[kind])])

    def speedup(self, sizes: Mapping[str, Sequence[float]]) -> float:
        """Predict the speedup over the model with the same number of modules, each at its largest size."""
        dense = {kind: [self._curve(kind).sizes[0]] * len(sizes[kind]) for kind in sizes}
        seconds = self.predict(sizes)
        return self.predict(dense) / seconds if seconds > 0 else math.inf

    def _curve(self, kind: str) -> LatencyCurve:
        if kind not in self.curves:
            raise OptionError(f"the table has no curve {kind!r}", f"use one of {', '.join(self.curves)}")
        return self.curves[kind]

    def require_environment(self, environment: Environment) -> None:
        """Raise EnvironmentMismatch with the differences unless the table was measured in `environment`."""
        if differences := environment.differences(self.environment):
            raise EnvironmentMismatch(
                f"the table was measured in another environment: {', '.join(map(str, differences))}",
                "profile again here, or pass allow_other_environment=True",
            )

    def save(self, path: str | Path) -> None:
        """Write the table to a JSON file, atomically.

        Raises:
            OptionError: The folder does not exist or is not writable.
        """
        document = {
            "format": FORMAT,
            "version": VERSION,
            "environment": self.environment.to_dict(),
            "fixed": self.fixed,
            "curves": {kind: curve.to_dict() for kind, curve in self.curves.items()},
        }
        with atomic_write(Path(path)) as temporary:
            temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(
        cls,
        path: str | Path,
        environment: Environment | None = None,
        *,
        allow_other_environment: bool = False,
    ) -> LatencyTable:
        """Read a table that was written by `save`.

        Args:
            path: JSON file.
            environment: Environment that the table must have been measured in; None accepts any.
            allow_other_environment: Accept a table from another environment instead of raising an error.

        Raises:
            UnreadableTable: The file is missing or cannot be read.
            TableError: The file is corrupt, not a latency table, or of another schema version.
            EnvironmentMismatch: The table was measured in another environment, and that is not allowed.
        """
        table = cls._from_document(path, read_json(Path(path)))
        if environment is not None and not allow_other_environment:
            table.require_environment(environment)
        return table

    @classmethod
    def _from_document(cls, path: str | Path, document: Any) -> LatencyTable:
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise TableError(
                f"{shortened(path)} is not a latency table",
                "create one with LatencyTable.save or latency-profiler run",
            )
        if (found := document.get("version")) != VERSION:
            raise TableError(
                f"{shortened(path)} has schema version {found!r:.40}, but only {VERSION} can be read",
                "install the version of latency-profiler that wrote it, or profile again",
            )
        try:
            parts = checked_fields(document, _FIELD_TYPES)
            curves = {kind: LatencyCurve.from_dict(values) for kind, values in parts["curves"].items()}
            return cls(Environment.from_dict(parts["environment"]), float(parts["fixed"]), curves)
        except ProfilerError as error:
            raise TableError(f"{shortened(path)} is corrupt: {error.message}", error.hint) from error

    def __str__(self) -> str:
        lines = [str(self.environment), f"fixed: {self.fixed * 1e3:.4g} ms"]
        return "\n".join(lines + [f"{kind}: {curve}" for kind, curve in self.curves.items()])

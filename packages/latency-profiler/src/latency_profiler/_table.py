"""LatencyTable: the times of all modules of a model at every size, and where they were measured."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latency_profiler._curve import LatencyCurve
from latency_profiler._environment import Environment
from latency_profiler._errors import EnvironmentMismatch, OptionError, ProfilerError, TableError, one_line
from latency_profiler._files import written_whole
from latency_profiler._json import NUMBER, checked_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT = "latency-profiler table"
VERSION = 1
_KINDS = {"format": (str,), "version": (int,), "environment": (dict,), "fixed": NUMBER, "curves": (dict,)}


@dataclass(frozen=True)
class LatencyTable:
    """Seconds of a model as a sum: a fixed part, and a curve per kind of module.

    Attributes:
        environment: Where it was measured.
        fixed: Seconds of everything outside the modules (embeddings, head).
        curves: By kind of module: ``{"attention": curve, "ffn": curve}``.
    """

    environment: Environment
    fixed: float
    curves: Mapping[str, LatencyCurve]

    def __post_init__(self) -> None:
        if not (math.isfinite(self.fixed) and self.fixed >= 0):
            raise TableError(f"the fixed part is {self.fixed} seconds", "use a finite number from 0 up")
        if not self.curves:
            raise TableError("there is no curve", "give at least one, by kind of module")

    def predict(self, sizes: Mapping[str, Sequence[float]]) -> float:
        """Seconds of a model with modules of these sizes: ``{"attention": [12, 8], "ffn": [3072, 33]}``.

        One entry per module; sizes between the measured ones are interpolated.
        """
        return math.fsum([self.fixed, *(self._curve(kind)(size) for kind in sizes for size in sizes[kind])])

    def speedup(self, sizes: Mapping[str, Sequence[float]]) -> float:
        """How many times faster than the model with the same modules, each at its largest size."""
        dense = {kind: [self._curve(kind).sizes[0]] * len(sizes[kind]) for kind in sizes}
        seconds = self.predict(sizes)
        return self.predict(dense) / seconds if seconds > 0 else math.inf

    def _curve(self, kind: str) -> LatencyCurve:
        if kind not in self.curves:
            raise OptionError(f"there is no curve {kind!r}", f"the table has {', '.join(self.curves)}")
        return self.curves[kind]

    def require_environment(self, environment: Environment) -> None:
        """Raise EnvironmentMismatch, naming the differences, unless it was measured in `environment`."""
        if differences := environment.differences(self.environment):
            raise EnvironmentMismatch(
                f"the table was measured in another environment: {', '.join(map(str, differences))}",
                "profile here, or agree with allow_other_environment=True",
            )

    def save(self, path: str | Path) -> None:
        """Write as JSON; the file appears whole or not at all."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "environment": self.environment.to_dict(),
            "fixed": self.fixed,
            "curves": {kind: curve.to_dict() for kind, curve in self.curves.items()},
        }
        with written_whole(Path(path)) as temporary:
            temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(
        cls,
        path: str | Path,
        environment: Environment | None = None,
        *,
        allow_other_environment: bool = False,
    ) -> LatencyTable:
        """Read a table; with `environment`, one that was measured there unless another is allowed.

        Raises:
            TableError: The file is missing, corrupt, foreign, or of a newer version.
            EnvironmentMismatch: It was measured elsewhere and `allow_other_environment` is False.
        """
        table = cls._from_document(path, _read_json(Path(path)))
        if environment is not None and not allow_other_environment:
            table.require_environment(environment)
        return table

    @classmethod
    def _from_document(cls, path: str | Path, document: Any) -> LatencyTable:
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise TableError(
                f"{path} is not a latency table", "make one with LatencyTable.save or latency-profiler run"
            )
        if document.get("version") != VERSION:
            raise TableError(
                f"{path} has schema version {document.get('version')}, this package reads {VERSION}",
                "install the version of latency-profiler that wrote it, or profile again",
            )
        try:
            parts = checked_fields(document, _KINDS)
            curves = {kind: LatencyCurve.from_dict(values) for kind, values in parts["curves"].items()}
            return cls(Environment.from_dict(parts["environment"]), float(parts["fixed"]), curves)
        except ProfilerError as error:
            raise TableError(f"{path} is corrupt: {error.message}", error.hint) from error

    def __str__(self) -> str:
        lines = [str(self.environment), f"fixed: {self.fixed * 1e3:.4g} ms"]
        return "\n".join(lines + [f"{kind}: {curve}" for kind, curve in self.curves.items()])


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TableError(f"cannot read {path}: {error.strerror}", "check the path") from error
    except ValueError as error:  # not UTF-8, or not JSON
        raise TableError(
            f"{path} is not JSON: {one_line(error)}", "profile again, or restore the file"
        ) from error

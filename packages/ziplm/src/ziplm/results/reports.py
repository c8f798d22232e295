"""Reading the reports of finished targets; a file that is not a report of a run is not believed."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from ziplm.errors import BadRun
from ziplm.files import read_json

ALTERNATIVES = "alternatives.json"
"""File in the run folder with what else could be done to the dense model, measured in the same way."""

_Positive = Annotated[float, Field(gt=0)]
_Count = Annotated[int, Field(ge=0)]
_PositiveCount = Annotated[int, Field(gt=0)]
_Size = _Count | Annotated[list[_Count], Field(min_length=2, max_length=2)]  # groups; or heads, their width
_DenseSize = _PositiveCount | Annotated[list[_PositiveCount], Field(min_length=2, max_length=2)]
_Interval = Annotated[list[float], Field(min_length=2, max_length=2)]


class _Part(BaseModel):
    """Part of a report: the values that are read from it; others may be there as well."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Target(_Part):
    name: str
    kind: str
    value: float


class _Predicted(_Part):
    seconds: _Positive
    speedup: _Positive


class _Measured(_Predicted):
    low: float
    high: float
    dense_seconds: _Positive
    competition: Annotated[float, Field(ge=0, le=1)] = 0.0
    doubt: Annotated[float, Field(ge=0)] = 0.0


class _Metric(_Part):
    name: str
    dense: float
    compressed: float
    greater_is_better: bool | None = None  # reports of 0.1 lack it, and all intervals
    dense_interval: _Interval | None = None
    interval: _Interval | None = None
    difference_interval: _Interval | None = None


class _Parameters(_Part):
    all: _Count
    layers: _PositiveCount


class _LayerParameters(_Part):
    layers: _Count


class _Training(_Part):
    epochs: float
    steps: _Count
    examples: _Count


class _Report(_Part):
    target: _Target
    measured: _Measured | None
    predicted: _Predicted
    metric: _Metric
    sizes: dict[str, list[_Size]]
    dense_sizes: dict[str, _DenseSize]
    parameters: _LayerParameters
    dense_parameters: _Parameters
    bytes_on_disk: _Count
    seconds: dict[str, Annotated[float, Field(ge=0)]]
    training: _Training | None = None

    @field_validator("sizes")
    @classmethod
    def _one_size_for_each_layer(cls, sizes: dict[str, list[Any]]) -> dict[str, list[Any]]:
        if len({len(layers) for layers in sizes.values()}) > 1:
            raise ValueError("there are not as many sizes of each kind")
        return sizes


class _Alternative(_Part):
    name: str
    metric: float | None = None
    interval: _Interval | None = None
    difference_interval: _Interval | None = None
    speedup: _Positive | None = None
    low: float | None = None
    high: float | None = None
    bytes_on_disk: float | None = None
    sentence: str | None = None
    targets: list[str] | None = None


class _FamilyReport(_Training):
    targets: list[str]
    trainings: _Count
    hours: Annotated[float, Field(ge=0)]


def read_report(path: Path) -> dict[str, Any]:
    """Read the report of a finished target, its metrics.json.

    Raises:
        BadRun: if the file is damaged, or is not the report of a target.
    """
    return _read(path, _Report)


def read_family_report(path: Path) -> dict[str, Any]:
    """Read the report on a whole family, family.json of a gradual run; raises BadRun like `read_report`."""
    return _read(path, _FamilyReport)


def read_training(path: Path) -> dict[str, Any]:
    """Read the summary of the dense model's training; raises BadRun like `read_report`."""
    return _read(path, _Training)


def read_alternatives(path: Path) -> tuple[dict[str, Any], ...]:
    """Read what else could be done to the dense model, `ALTERNATIVES`; empty if the file is missing.

    Returns:
        A dictionary for each alternative, with a ``name``, and where they are known ``metric`` and its 95 %
        ``interval``, the ``difference_interval`` of metric minus dense metric, the measured ``speedup`` with
        ``low`` and ``high`` of its 99 % interval, ``bytes_on_disk``, a ``sentence`` that explains it, and the
        names of the ``targets`` that the run had.

    Raises:
        BadRun: if the file is something else.
    """
    if not path.is_file():
        return ()
    found = read_json(path)
    try:
        TypeAdapter(list[_Alternative]).validate_python(found)
    except ValidationError:
        raise BadRun(
            f"{path} is not a list of alternatives with names and numbers", "correct or delete it"
        ) from None
    return tuple(found)


def _read(path: Path, kind: type[_Part]) -> dict[str, Any]:
    document: dict[str, Any] = read_json(path)
    try:
        kind.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "all of it"
        raise BadRun(
            f"{path} is damaged or not a report of ziplm: {place}: {first['msg']}",
            "restore it, or move its folder away and run the command again",
        ) from None
    return document

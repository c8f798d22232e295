"""Traces stored in files. Those of a large model need several times its memory, so one is read at a time."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

from obs_structured import Trace

from ziplm.errors import BadRun
from ziplm.files import damaged


class StoredTraces(Mapping[str, Trace]):
    """Traces by branch name, each read when it is accessed; the last one stays in memory.

    Accessing a trace raises BadRun if its file is damaged, or is of another branch.

    Args:
        files: file of each trace, by branch name.
        shapes: rows, groups and group size of each trace; None to accept any.
    """

    def __init__(
        self, files: Mapping[str, Path], shapes: Mapping[str, tuple[int, int, int]] | None = None
    ) -> None:
        self._files = dict(files)
        self._shapes = shapes
        self._last: tuple[str, Trace] | None = None

    def __getitem__(self, name: str) -> Trace:
        path = self._files[name]
        if self._last is None or self._last[0] != name:
            self._last = None  # release it before the next one is read
            self._last = (name, self._read(name, path))
        return self._last[1]

    def _read(self, name: str, path: Path) -> Trace:
        try:
            trace = Trace.load(path)
        except (FileNotFoundError, ValueError) as error:
            raise BadRun(str(error), "delete that file and run the command again") from error
        if self._shapes is not None:
            rows = trace.weight(trace.groups).shape[0]
            if (rows, trace.groups, trace.group_size) != self._shapes[name]:
                raise damaged(path)
        return trace

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files  # without reading it


class InOrder(Sequence[Trace | None]):
    """Traces in the order of `names`, as `shrink` takes them; None for a branch without a trace."""

    def __init__(self, traces: Mapping[str, Trace], names: Sequence[str]) -> None:
        self._traces, self._names = traces, names

    @overload
    def __getitem__(self, index: int) -> Trace | None: ...
    @overload
    def __getitem__(self, index: slice) -> "InOrder": ...
    def __getitem__(self, index: int | slice) -> "Trace | InOrder | None":
        if isinstance(index, slice):
            return InOrder(self._traces, self._names[index])
        return self._traces.get(self._names[index])

    def __len__(self) -> int:
        return len(self._names)

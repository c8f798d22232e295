"""Traces stored in files. Those of a large model need several times its memory, so one is read at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar, overload

from obs_structured import ScoreTrace, Trace, WidthTrace

from ziplm.architectures.attention_trace import AttentionTrace, BranchTrace
from ziplm.errors import BadRun
from ziplm.files import damaged

T = TypeVar("T")


class TraceFiles(NamedTuple):
    """The files of one branch's trace.

    Attributes:
        heads: the trace of removing groups.
        values, scores: for heads that may become narrower, the traces that do so; None for other branches.
    """

    heads: Path
    values: Path | None = None
    scores: Path | None = None

    def exist(self) -> bool:
        """Return whether all files are there."""
        return all(path.exists() for path in self if path is not None)

    def save(self, trace: BranchTrace) -> None:
        """Write a trace; the file of removing groups is the last."""
        for path in self:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(trace, AttentionTrace) and self.values is not None and self.scores is not None:
            trace.values.save(self.values)
            trace.scores.save(self.scores)
            trace = trace.heads
        assert isinstance(trace, Trace)
        trace.save(self.heads)


class StoredTraces(Mapping[str, BranchTrace]):
    """Traces by branch name, each read when it is accessed; the last one stays in memory.

    Accessing a trace raises BadRun if its file is damaged, or is of another branch.

    Args:
        files: files of each trace, by branch name.
        shapes: rows, groups and group size of each trace; None to accept any.
    """

    def __init__(
        self, files: Mapping[str, TraceFiles], shapes: Mapping[str, tuple[int, int, int]] | None = None
    ) -> None:
        self._files = dict(files)
        self._shapes = shapes
        self._last: tuple[str, BranchTrace] | None = None

    def __getitem__(self, name: str) -> BranchTrace:
        files = self._files[name]
        if self._last is None or self._last[0] != name:
            self._last = None  # release it before the next one is read
            self._last = (name, self._read(name, files))
        return self._last[1]

    def _read(self, name: str, files: TraceFiles) -> BranchTrace:
        heads = _loaded(Trace.load, files.heads)
        if self._shapes is not None:
            rows = heads.weight(heads.groups).shape[0]
            if (rows, heads.groups, heads.group_size) != self._shapes[name]:
                raise damaged(files.heads)
        if files.values is None or files.scores is None:
            return heads
        values = _loaded(WidthTrace.load, files.values)
        scores = _loaded(ScoreTrace.load, files.scores)
        for path, trace in ((files.values, values), (files.scores, scores)):
            if (trace.heads, trace.head_size) != (heads.groups, heads.group_size):
                raise damaged(path)
        return AttentionTrace(heads, values, scores)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files  # without reading it


def _loaded(load: Callable[[Path], T], path: Path) -> T:
    try:
        return load(path)
    except (FileNotFoundError, ValueError) as error:
        raise BadRun(str(error), "delete that file and run the command again") from error


class InOrder(Sequence[BranchTrace | None]):
    """Traces in the order of `names`, as `shrink` takes them; None for a branch without a trace."""

    def __init__(self, traces: Mapping[str, BranchTrace], names: Sequence[str]) -> None:
        self._traces, self._names = traces, names

    @overload
    def __getitem__(self, index: int) -> BranchTrace | None: ...
    @overload
    def __getitem__(self, index: slice) -> "InOrder": ...
    def __getitem__(self, index: int | slice) -> "BranchTrace | InOrder | None":
        if isinstance(index, slice):
            return InOrder(self._traces, self._names[index])
        return self._traces.get(self._names[index])

    def __len__(self) -> int:
        return len(self._names)

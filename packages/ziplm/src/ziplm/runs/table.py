"""Reading latency tables: those of a run, and those that the user gives."""

from pathlib import Path

from latency_profiler import LatencyTable, ProfilerError

from ziplm.errors import UsageError, one_line
from ziplm.files import believed, damaged


def read_run_table(path: Path) -> LatencyTable:
    """Read the latency table of a run; raise BadRun if it is damaged."""
    try:
        with believed(path):
            return LatencyTable.load(path)
    except ProfilerError as error:
        raise damaged(path) from error


def read_given_table(path: str | Path) -> LatencyTable:
    """Read a latency table that the user gives; raise UsageError if it cannot be used."""
    try:
        return LatencyTable.load(path)
    except (ProfilerError, RecursionError) as error:
        raise UsageError(
            f"the latency table cannot be used: {one_line(error)}", "make one with `ziplm profile`"
        ) from error

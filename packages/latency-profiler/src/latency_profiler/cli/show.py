"""``latency-profiler show``: print tables on the terminal."""

from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from latency_profiler._curve import LatencyCurve
from latency_profiler._table import LatencyTable
from latency_profiler._timing import BUSY, format_seconds

table_files = click.argument(
    "tables", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TABLE..."
)


@click.command(epilog="Example: latency-profiler show bert-base.json")
@table_files
def show(tables: tuple[Path, ...]) -> None:
    """Print the time and speedup at each size.

    Several tables are shown side by side. For a single table, ± is the relative error of the time, and
    "slow runs" describes the slowest quarter of the runs: 3x means that each of them took at least three
    times the time shown. From 2x on, the machine was busy with other work.
    """
    print_tables(load_all(tables))


def load_all(paths: tuple[Path, ...]) -> dict[str, LatencyTable]:
    """Load tables, named by their file stems if these are distinct, else by their paths."""
    stems = [path.stem for path in paths]
    names = stems if len(set(stems)) == len(stems) else [str(path) for path in paths]
    return {name: LatencyTable.load(path) for name, path in zip(names, paths, strict=True)}


def print_tables(tables: Mapping[str, LatencyTable]) -> None:
    """Print the environment of each table, then the times at each size, per kind of module."""
    console = Console(highlight=False)
    for name, table in tables.items():
        console.print(f"[bold]{escape(name)}[/bold]  {escape(str(table.environment))}", soft_wrap=True)
        if table.fixed:
            console.print(f"fixed part: {format_seconds(table.fixed)}")
    for kind in {kind: None for table in tables.values() for kind in table.curves}:
        curves = {name: table.curves[kind] for name, table in tables.items() if kind in table.curves}
        console.print(curves_table(kind, curves))
        for name, curve in curves.items():
            label = kind if len(tables) == 1 else f"{name}, {kind}"
            if note := busy_note(label, curve, tables[name].environment.clock):
                console.print(note, soft_wrap=True, markup=False)


def curves_table(kind: str, curves: Mapping[str, LatencyCurve]) -> Table:
    """Tabulate the time and speedup of each curve at each size; for a single curve, also its errors."""
    alone = len(curves) == 1
    result = Table(title=escape(kind), title_justify="left", title_style="bold")
    result.add_column("size", justify="right")
    for name in curves:
        prefix = "" if alone else f"{name} "
        for column in ("time", *(("±", "slow runs") if alone else ()), "speedup"):
            result.add_column(escape(f"{prefix}{column}"), justify="right")
    rows = {name: _rows(curve, with_error=alone) for name, curve in curves.items()}
    for size in sorted({size for curve in curves.values() for size in curve.sizes}, reverse=True):
        cells = [rows[name].get(size, ("",) * (4 if alone else 2)) for name in curves]
        result.add_row(str(size), *(cell for group in cells for cell in group))
    return result


def busy_note(label: str, curve: LatencyCurve, clock: str) -> str:
    """Return a warning if the machine was too busy to reach the requested precision in time, else "".

    Slow runs alone cause no warning: if the requested precision was reached, the times can be trusted,
    because they come from the fastest runs.
    """
    busy = [
        (timing.slow_runs, size)
        for size, timing in zip(curve.sizes, curve.timings, strict=False)
        if timing.busy and timing.stopped == "max_seconds"
    ]
    if not busy:
        return ""
    worst, size = max(busy)
    other_clock = ", or with --clock cpu --threads 1" if clock == "wall" else ""
    return (
        f"{label}: the machine was busy, and the time limit was reached before the requested precision. "
        f"At {len(busy)} of {len(curve.sizes)} sizes, a quarter of the runs took at least {BUSY:g}x the "
        f"time shown (at worst {worst:.1f}x, at size {size}). Profile again with a larger --max-seconds, "
        f"on an idle machine{other_clock}."
    )


def _rows(curve: LatencyCurve, *, with_error: bool) -> dict[int, tuple[str, ...]]:
    """Return the formatted cells of a curve by size."""
    rows = {}
    for index, (size, seconds) in enumerate(zip(curve.sizes, curve.seconds, strict=True)):
        error: tuple[str, ...] = ()
        if with_error and curve.timings:
            timing = curve.timings[index]
            error = (f"{timing.rel_error:.1%}", f"{timing.slow_runs:.1f}x")
        elif with_error:
            error = ("", "")
        rows[size] = (format_seconds(seconds), *error, f"{curve.speedups[index]:.1f}x")
    return rows

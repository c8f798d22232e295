"""``latency-profiler diff``: show the differences between two tables."""

from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from latency_profiler._curve import LatencyCurve
from latency_profiler._table import LatencyTable
from latency_profiler._timing import format_seconds


@click.command(epilog="Example: latency-profiler diff bert-base.json bert-base.json")
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
def diff(before: Path, after: Path) -> None:
    """Compare two tables.

    Shows how the environment and the time at each size changed from BEFORE to AFTER.
    """
    old, new = LatencyTable.load(before), LatencyTable.load(after)
    console = Console(highlight=False)
    differences = old.environment.differences(new.environment)
    console.print("[bold]environment[/bold]" + ("" if differences else ": no differences"))
    for what, here, there in differences:
        console.print(f"  {what}: {here} → {there}", soft_wrap=True, markup=False)
    if old.fixed or new.fixed:
        console.print(f"[bold]fixed part[/bold]: {format_seconds(old.fixed)} → {format_seconds(new.fixed)}")
    for kind in {**old.curves, **new.curves}:
        if kind in old.curves and kind in new.curves:
            _print_changes(console, kind, old.curves[kind], new.curves[kind])
        else:
            console.print(f"{kind}: only in {before if kind in old.curves else after}", markup=False)


def _print_changes(console: Console, kind: str, old: LatencyCurve, new: LatencyCurve) -> None:
    """Print the change at each size that both curves have, and a summary."""
    new_seconds = dict(zip(new.sizes, new.seconds, strict=True))
    shared = [
        (size, seconds, new_seconds[size])
        for size, seconds in zip(old.sizes, old.seconds, strict=True)
        if size in new_seconds
    ]
    if not shared:
        console.print(f"{kind}: no sizes in common", markup=False)
        return
    table = Table(title=escape(kind), title_justify="left", title_style="bold")
    for column in ("size", "before", "after", "change"):
        table.add_column(column, justify="right")
    changes = []
    for size, first, second in shared:
        changes.append(second / first - 1 if first else np.nan)
        table.add_row(str(size), format_seconds(first), format_seconds(second), f"{changes[-1]:+.1%}")
    console.print(table)
    unshared = len({*old.sizes} ^ {*new.sizes})
    note = f"; sizes in only one table: {unshared}" if unshared else ""
    median, largest = np.nanmedian(np.abs(changes)), np.nanmax(np.abs(changes))
    console.print(f"{kind}: median change {median:.1%}, largest change {largest:.1%}{note}", markup=False)

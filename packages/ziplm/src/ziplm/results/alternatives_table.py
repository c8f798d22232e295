"""The table of alternatives: a run's members beside what people do instead of pruning."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ziplm.results.plain import finite, mapping
from ziplm.results.run_data import RunData, read_run
from ziplm.results.scaling import speedup_of
from ziplm.results.table import ASCII_SIGNS, SIGNS, Signs, value_text
from ziplm.results.texts import bytes_text, interval_text


@dataclass(frozen=True)
class Compared:
    """One model of the table.

    Attributes:
        name: what it is.
        speedup: measured speedup over the dense model in the same engine, and the ends of its 99 % interval.
        metric: the metric, and its 95 % interval if there is one.
        difference: the metric minus that of the dense model.
        alike: whether the difference may be chance.
        disk: bytes of what is served.
    """

    name: str
    speedup: tuple[float, float | None, float | None]
    metric: tuple[float, Sequence[float] | None]
    difference: float
    alike: bool
    disk: float | None

    def texts(self, signs: Signs = SIGNS) -> tuple[str, ...]:
        """Return the cells of the table, one for each of the `headings`."""
        return (
            self.name,
            interval_text(*self.speedup, "x"),
            value_text(*self.metric, signs),
            f"{self.difference:+.4f}{f' {signs.alike}' if self.alike else ''}",
            bytes_text(self.disk),
        )


def headings(run: RunData) -> tuple[str, ...]:
    """Return the headings of the table."""
    return ("model", "speed", run.metric, "difference", "disk")


def compared_models(run: RunData) -> list[Compared]:
    """Return the dense model, the members and the alternatives of a run, the slowest first."""
    first = run.reports[0]["metric"]
    dense: float = first["dense"]
    rows = [Compared("dense", (1.0, None, None), (dense, first.get("dense_interval")), 0.0, False, None)]
    for report in run.reports:
        metric, measured = report["metric"], report["measured"] or {}
        served = mapping(report.get("exported")).get("bytes", report.get("bytes_on_disk"))
        as_alternative = {
            "name": f"{report['target']['name']}{' + int8' if report.get('quantization') else ''}",
            "speedup": speedup_of(report),
            "low": measured.get("low"),
            "high": measured.get("high"),
            "metric": metric["compressed"],
            "interval": metric.get("interval"),
            "difference_interval": metric.get("difference_interval"),
            "bytes_on_disk": served,
        }
        rows.append(_compared(as_alternative, dense))
    rows += [
        _compared(each, dense)
        for each in run.alternatives
        if len(finite([each.get("metric"), each.get("speedup")])) == 2
    ]
    return sorted(rows, key=lambda row: row.speedup[0])


def _compared(each: dict[str, Any], dense: float) -> Compared:
    difference = each.get("difference_interval")
    return Compared(
        each["name"],
        (each["speedup"], each.get("low"), each.get("high")),
        (each["metric"], each.get("interval")),
        each["metric"] - dense,
        difference is not None and difference[0] <= 0 <= difference[1],
        each.get("bytes_on_disk"),
    )


def print_alternatives(folder: Path, console: Console) -> None:
    """Print the table of a run, and which targets int8 alone meets; nothing if it has no alternatives."""
    run = read_run(folder)
    if not run.alternatives:
        return
    signs = ASCII_SIGNS if console.options.ascii_only else SIGNS
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))  # fits 80 columns without lines
    for heading in headings(run):
        name = heading == "model"
        table.add_column(heading, justify="left" if name else "right", no_wrap=name)
    for row in compared_models(run):
        table.add_row(*row.texts(signs))
    console.print("\nthe models above beside what people do instead, in the same engine:")
    console.print(table)
    for each in run.alternatives:
        if "int8 alone" in str(each.get("sentence")):
            console.print(each["sentence"], markup=False, soft_wrap=True)

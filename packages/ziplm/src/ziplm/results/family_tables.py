"""The tables of a page: the family, which can be sorted, and what is kept of each layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ziplm.results.plain import finite
from ziplm.results.rows import member_key, quality_rows, recovery, size_rows
from ziplm.results.run_data import Report, RunData
from ziplm.results.scaling import speedup_of
from ziplm.results.table import metric_texts, value_text
from ziplm.results.texts import NONE, bytes_text, count_text, interval_text, number_text, percent_text


@dataclass(frozen=True)
class Cell:
    """A cell of the family's table: its text, and the value that sorts it (None comes last)."""

    text: str
    value: float | str | None


@dataclass(frozen=True)
class FamilyTable:
    """The table of all members.

    Attributes:
        headings: headings of the columns.
        rows: key, name for people, and cells of each member.
        alike: whether some metric is marked as one that cannot be told apart from the dense model's.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[Cell, ...]], ...]
    alike: bool


def family_table(runs: Sequence[RunData]) -> FamilyTable:
    """Return the members of all runs with their speed, metric and size."""
    several = len(runs) > 1
    metrics = list(dict.fromkeys(run.metric for run in runs))
    metric = metrics[0] if len(metrics) == 1 else "metric"
    headings = (
        *(("run",) if several else ()),
        "target",
        "speedup, 99 % interval",
        "time (ms)",
        f"{metric}, 95 % interval",
        "of dense metric",
        "layers' parameters",
        "of dense parameters",
        "on disk",
    )
    rows = tuple(
        (
            member_key(run, report),
            f"{run.label}, {report['target']['name']}" if several else str(report["target"]["name"]),
            (*((Cell(run.label, run.label),) if several else ()), *_cells(report)),
        )
        for run in runs
        for report in run.reports
    )
    return FamilyTable(headings, rows, any("≈" in cell.text for _, _, cells in rows for cell in cells))


def _cells(report: Report) -> tuple[Cell, ...]:
    measured, speedup = report["measured"] or {}, speedup_of(report)
    if measured:
        speed = interval_text(speedup, measured.get("low"), measured.get("high"), "x")
    else:
        speed = f"{number_text(speedup, 'x')} predicted"
    seconds = (report["measured"] or report["predicted"]).get("seconds")
    share = recovery(report["metric"])
    left = (report.get("parameters") or {}).get("layers")
    dense = (report.get("dense_parameters") or {}).get("layers")
    of_dense = left / dense if left is not None and dense else None
    metric = report["metric"]["compressed"]
    name = str(report["target"]["name"])
    return (
        Cell(name, speedup),  # in the order of their speed, because 10x comes after 2x
        Cell(speed, speedup),
        Cell(NONE if not finite([seconds]) else f"{1e3 * seconds:.3g}", seconds),
        Cell(metric_texts(report["metric"])[1], metric),
        Cell(percent_text(share), share),
        Cell(count_text(left), left),
        Cell(percent_text(of_dense), of_dense),
        Cell(bytes_text(report.get("bytes_on_disk")), report.get("bytes_on_disk")),
    )


def alternative_rows(run: RunData, runs: Sequence[RunData]) -> list[dict[str, str]]:
    """Return what is known of each alternative of a run, by heading; the mark is its letter in the chart."""
    marks = {
        row["name"]: row["label"]
        for row in quality_rows(runs)
        if row["kind"] == "alternative" and row["run"] == run.label
    }
    return [
        {
            "mark": marks.get(str(each["name"]), NONE),
            "alternative": str(each["name"]),
            "speedup, 99 % interval": interval_text(
                each.get("speedup"), each.get("low"), each.get("high"), "x"
            ),
            f"{run.metric}, 95 % interval": NONE
            if each.get("metric") is None
            else value_text(each["metric"], each.get("interval")),
            "on disk": bytes_text(each.get("bytes_on_disk")),
            "what it is": str(each.get("sentence") or ""),
        }
        for each in run.alternatives
    ]


@dataclass(frozen=True)
class Structure:
    """What every member keeps of one kind of branch.

    Attributes:
        kind: the kind, such as "attention heads".
        dense: the size in the dense model, or in those of several runs; empty if it is not known.
        layers: number of layers.
        rows: key and name of each member, and for each layer the size and its share of the dense size.
    """

    kind: str
    dense: str
    layers: int
    rows: tuple[tuple[str, str, tuple[tuple[str, float], ...]], ...]

    @property
    def has_widths(self) -> bool:
        """Whether sizes are numbers of heads with their width."""
        return any("×" in size for _, _, cells in self.rows for size, _ in cells)


def structures(runs: Sequence[RunData]) -> list[Structure]:
    """Return what is kept of each layer, one table for each kind of branch."""
    found: dict[str, dict[str, tuple[str, list[tuple[str, float]]]]] = {}
    dense: dict[str, dict[str, None]] = {}  # in the order of the runs
    for row in size_rows(runs):
        dense.setdefault(row["kind"], {})[row["dense"]] = None
        name = f"{row['run']}: {row['name']}" if len(runs) > 1 else str(row["name"])
        cells = found.setdefault(row["kind"], {}).setdefault(row["key"], (name, []))[1]
        cells.append((row["size"], row["share"]))
    return [
        Structure(
            kind,
            " or ".join(filter(None, dense[kind])),
            max(len(cells) for _, cells in members.values()),
            tuple((key, name, tuple(cells)) for key, (name, cells) in members.items()),
        )
        for kind, members in found.items()
    ]


def structure_sentences(runs: Sequence[RunData]) -> dict[str, str]:
    """Describe what each member keeps, by key, to be shown when a reader chooses it."""
    sentences: dict[str, list[str]] = {}
    for structure in structures(runs):
        for key, _, cells in structure.rows:
            gone = [str(layer) for layer, (_, share) in enumerate(cells) if share == 0]
            kept = sum(share for _, share in cells) / max(len(cells), 1)
            text = f"{percent_text(kept)} of the {structure.kind}"
            if gone:
                text += f" (none in layer{'s' if len(gone) > 1 else ''} {', '.join(gone)})"
            sentences.setdefault(key, []).append(text)
    return {key: f"keeps {' and '.join(texts)}" for key, texts in sentences.items()}


def as_text(value: Any) -> str:
    """Return a value that sorts a row as text for a page; empty if there is none."""
    return "" if value is None else str(value)

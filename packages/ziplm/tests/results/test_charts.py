"""Charts of one run and of several: labels that cover nothing, and colours that mean the same everywhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ziplm.files import read_json, write_json
from ziplm.results.chart import Spec
from ziplm.results.chart_of_quality import quality_chart
from ziplm.results.charts_of_family import sizes_chart
from ziplm.results.charts_of_making import latency_charts, search_chart, training_charts
from ziplm.results.family_tables import structures
from ziplm.results.run_data import RunData, read_runs
from ziplm.results.texts import environment_text
from ziplm_reports import DENSE, write_run


def encodings(chart: Any, channel: str) -> Iterator[Spec]:
    """Yield how each layer encodes a channel."""
    for layer in chart.spec["layer"]:
        if channel in layer["encoding"]:
            yield layer["encoding"][channel]


def name_of_line(run: RunData) -> tuple[float, int]:
    """Return where the name of the line of 99 % stands: its speedup, and its distance below the line."""
    (layer,) = (
        each
        for each in quality_chart([run]).spec["layer"]
        if "of dense" in str(each.get("data", {}).get("values", ""))
    )
    return layer["data"]["values"][0]["place"], layer["mark"]["dy"]


@pytest.mark.parametrize(("loss", "is_below"), [(0.001, True), (0.05, False)])
def test_the_name_of_the_line_stands_between_marks_and_off_the_curve(
    tmp_path: Path, loss: float, is_below: bool
) -> None:
    metric = {"name": "accuracy", "dense": DENSE, "compressed": DENSE - loss, "greater_is_better": True}
    (run,) = read_runs([write_run(tmp_path / "run", (2.0, 3.0, 6.0), metric=metric)])
    place, offset = name_of_line(run)
    assert 3.1 < place < 5.9  # the widest gap
    assert (offset > 0) is is_below


def test_the_name_of_the_line_stands_in_the_widest_gap_of_a_logarithmic_axis(tmp_path: Path) -> None:
    (run,) = read_runs([write_run(tmp_path / "run", (4.0, 8.0, 16.0, 24.0))])
    assert 1 < name_of_line(run)[0] < 4


def test_a_run_has_its_colour_in_all_charts_and_only_shown_runs_are_in_a_legend(tmp_path: Path) -> None:
    runs = read_runs([write_run(tmp_path / "one"), write_run(tmp_path / "trained", gradual=True)])
    search = search_chart(runs)
    assert search is not None
    for chart in (search, *training_charts(runs)):
        for colour in encodings(chart, "color"):
            assert (colour["field"], colour["scale"]["domain"]) == ("run", ["one", "trained"])
            shown = ["one", "trained"] if chart is search else ["trained"]
            assert colour["legend"]["values"] == shown
    (alone,) = (chart for chart in training_charts(runs[1:]) if chart.name == "training-loss")
    assert [colour["field"] for colour in encodings(alone, "color")] == ["name"]


def test_the_loss_of_each_training_is_named_if_they_differ(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, (2.0,), gradual=True) for name in ("one", "other")]
    assert "Loss: 1 x logits + 0.5 x hidden states." in training_charts(read_runs(folders))[0].notes
    report = folders[1] / "2x" / "metrics.json"
    document = read_json(report)
    document["training"]["loss_weights"] = {"task": 1.0}
    write_json(report, document)
    notes = training_charts(read_runs(folders))[0].notes
    assert {"one: Loss: 1 x logits + 0.5 x hidden states.", "other: Loss: 1 x task."} < set(notes)


def test_lines_have_legends_in_which_dashes_can_be_told_apart(tmp_path: Path) -> None:
    runs = read_runs([write_run(tmp_path / "one"), write_run(tmp_path / "other", gradual=True)])
    for chart in (search_chart(runs), *latency_charts(runs)):
        for dash in encodings(chart, "strokeDash"):
            assert dash["legend"]["symbolType"] == "stroke"
            assert dash["legend"]["symbolSize"] >= 600


def test_sizes_are_shown_beside_those_of_the_dense_model(tmp_path: Path) -> None:
    runs = read_runs([write_run(tmp_path / "run", (2.0,))])
    assert [each.dense for each in structures(runs)] == ["12", "3072"]
    assert sizes_chart(runs, "FFN columns").notes[0] == "The dense model has 3072."
    assert not any(each.has_widths for each in structures(runs))
    sizes = {"attention": [[4, 24], [0, 0]], "ffn": [30, 20]}
    dense = {"attention": [12, 64], "ffn": 3072}
    narrow = write_run(tmp_path / "narrow", (2.0,), sizes=sizes, dense_sizes=dense)
    runs = read_runs([tmp_path / "run", narrow])
    assert [each.dense for each in structures(runs)] == ["12 or 12×64", "3072"]
    assert [each.has_widths for each in structures(runs)] == [True, False]
    assert "8×24 are 8 heads of width 24." in sizes_chart(runs, "attention heads").notes


def test_the_clock_is_named_as_people_write_it() -> None:
    assert environment_text({"clock": "cpu"}) == "CPU time"
    assert environment_text({"clock": "wall"}) == "wall time"

"""Figures as files: what they say, and that they can be read in grey."""

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from ziplm import compress
from ziplm.results.chart import cut_axis_title, padded_domain, theme
from ziplm.results.figures import FORMATS, charts_of, plot_runs
from ziplm.results.run_data import read_runs
from ziplm_compressed import options_for, write_files
from ziplm_reports import ALTERNATIVES, write_run

STARTS = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}


def texts_of(svg: Path) -> str:
    """Return all text of a figure."""
    return " ".join(" ".join(ET.fromstring(svg.read_text(encoding="utf-8")).itertext()).split())


def brightness(colour: str) -> float:
    """Return the relative luminance of a colour such as ``#0063a8``, as WCAG defines it."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((brightness(one), brightness(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("suffix", FORMATS)
def test_figures_are_written_in_each_format(tmp_path: Path, suffix: str) -> None:
    folder = write_run(tmp_path / "run", (2.0, 4.0))
    files = plot_runs([folder], tmp_path / "figures", suffix)
    assert {path.name for path in files} == {path.name for path in (tmp_path / "figures").iterdir()}
    assert [path.stem for path in files] == [
        "quality",
        "deviation",
        "sizes-attention-heads",
        "sizes-ffn-columns",
        "latency-attention-heads",
        "latency-ffn-columns",
        "search",
    ]
    assert all(path.read_bytes().startswith(STARTS[suffix]) for path in files)


def test_the_figure_of_quality_says_what_its_letters_stand_for(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", (2.0,), alternatives=ALTERNATIVES)
    texts = {path.stem: texts_of(path) for path in plot_runs([folder], suffix="svg")}
    assert "A: dense + int8; B: 6 of 12 layers." in texts["quality"]
    assert "dense + int8" not in texts["deviation"]


def test_figures_name_the_model_the_units_and_the_intervals(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", gradual=True)
    texts = {path.stem: texts_of(path) for path in plot_runs([folder], suffix="svg")}
    assert all("textattack/bert-base-uncased-SST-2, sst2" in text for text in texts.values())
    assert "accuracy (axis does not start at 0)" in texts["quality"]
    assert "Bars are 95 % intervals of the metric" in texts["quality"]
    assert "linear" not in texts["quality"]
    assert "faster than the target (%)" in texts["deviation"]
    assert "±5.28 %" in texts["deviation"]
    assert "time of one branch (ms)" in texts["latency-ffn-columns"]
    assert "1 thread, batch size 8" in texts["latency-ffn-columns"]
    assert "logarithmic" in texts["search"]
    assert {"training-loss", "training-metric"} < texts.keys()


def test_figures_of_several_runs_name_each_model_and_whose_alternative_a_letter_is(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", (2.0,), alternatives=ALTERNATIVES)
    other = write_run(tmp_path / "other", (2.0, 3.0), model="you/mine", alternatives=ALTERNATIVES[:1])
    files = plot_runs([one, other], tmp_path / "figures", suffix="svg")
    texts = {path.stem: texts_of(path) for path in files}
    for text in texts.values():
        assert "one: textattack/bert-base-uncased-SST-2, sst2" in text
        assert "other: you/mine, sst2" in text
    assert "B: 6 of 12 layers (one); C: dense + int8 (other)." in texts["quality"]
    assert "other: 3x" in texts["sizes-ffn-columns"]


def test_figures_of_several_runs_are_written_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [write_run(tmp_path / name, (2.0,)) for name in ("one", "other")]
    assert {path.parent for path in plot_runs(runs, suffix="svg")} == {Path("figures")}


def test_a_fit_is_drawn_from_three_targets_on(tmp_path: Path) -> None:
    few, many = (
        charts_of(read_runs([write_run(tmp_path / str(len(targets)), targets)]))[0]
        for targets in ((2.0, 3.0), (2.0, 3.0, 5.0))
    )
    assert not any(note.startswith("Dotted") for note in few.notes)
    assert any(note.startswith("Dotted: accuracy ≈ 0.9") for note in many.notes)
    assert len(many.spec["layer"]) == len(few.spec["layer"]) + 1


def test_an_axis_that_is_cut_says_so() -> None:
    assert cut_axis_title("accuracy", [0.8, 0.9]) == "accuracy (axis does not start at 0)"
    assert cut_axis_title("accuracy", [-0.1, 0.9]) == "accuracy"
    assert cut_axis_title("accuracy", [0.0, 0.9]) == "accuracy"


def test_an_axis_has_space_around_all_values() -> None:
    low, high = padded_domain([1.0, None, 3.0, float("nan")])
    assert low < 1 < 3 < high
    assert padded_domain([2.0, 2.0])[0] < 2 < padded_domain([2.0, 2.0])[1]
    assert padded_domain([0.0]) == [-1.0, 1.0]


def test_text_and_marks_contrast_with_the_page() -> None:
    """WCAG asks for 4.5 for text, and for 3 for marks."""
    for dark, page in ((False, "#ffffff"), (True, "#181d24")):
        made = theme(dark=dark)
        assert contrast(made["axis"]["labelColor"], page) > 4.5
        assert contrast(made["style"]["reference-label"]["color"], page) > 4.5
        assert all(contrast(colour, page) > 3 for colour in made["range"]["category"])


def test_the_first_colours_differ_in_grey() -> None:
    first = theme()["range"]["category"][:3]
    assert all(contrast(one, other) > 1.3 for one, other in itertools.combinations(first, 2))
    assert contrast("#c00000", "#006f00") < 1.3  # control: red and green may look alike in grey


@pytest.mark.parametrize(("architecture", "greater_is_better"), [("bert", True), ("gpt2", False)])
def test_reports_tell_the_direction_of_their_metric(
    tmp_path: Path, architecture: str, greater_is_better: bool
) -> None:
    files = write_files(tmp_path)
    (member,) = compress(**options_for(files, architecture, tmp_path / "run", speedup=[1.5]))
    assert member.metrics["metric"]["greater_is_better"] is greater_is_better
    (chart, *_) = charts_of(read_runs([tmp_path / "run"]))
    assert chart.notes[0].startswith("Up" if greater_is_better else "Down")

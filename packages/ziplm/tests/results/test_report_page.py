"""The page about a run: complete, escaped, within its size, and honest about what is missing."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from ziplm import BadRun
from ziplm.errors import MissingExtra, UsageError
from ziplm.files import write_json
from ziplm.results.report_page import render, write_report
from ziplm.results.run_data import read_run, read_runs
from ziplm.results.summary import caveats
from ziplm.results.texts import environment_text
from ziplm_reports import ALTERNATIVES, ENVIRONMENT, write_run

EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)>\"'&{{7*7}}"
LARGEST = 5_000_000  # bytes


class Parsed(HTMLParser):
    """Collects the tags of a page, its visible text, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


def page_of(*folders: Path) -> Parsed:
    return Parsed(render(read_runs(folders)))


def test_the_page_is_complete_in_itself_and_not_too_large(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", alternatives=ALTERNATIVES)
    write_report([folder], folder / "report.html")
    assert (folder / "report.html").stat().st_size < LARGEST
    page = Parsed((folder / "report.html").read_text(encoding="utf-8"))
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,")), (tag, attributes)
    css = "".join(re.findall(r"<style>(.*?)</style>", (folder / "report.html").read_text("utf-8"), re.DOTALL))
    assert "@import" not in css
    assert "url(" not in css


def test_the_page_shows_the_result_the_table_and_the_environment(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", alternatives=ALTERNATIVES))
    for words in (
        "The fastest model that keeps 99 % of the dense model's accuracy is 2x: measured 2.02x as fast",
        "2.02x [1.99, 2.04]",
        "0.9203 ±0.0200 ≈",
        "Every second layer removed.",
        "±5.28 %",
        "divergence from the dense model (KL)",
        "Intel(R) Xeon(R) Platinum 8488C, engine eager, float32, 1 thread, batch size 8, 128 tokens",
        "ziplm compress textattack/bert-base-uncased-SST-2 --task sst2 --speedup 2 -o runs/sst2",
        "transformers 5.22.2",
        "seed 0",
        "search 30.5 min",
    ):
        assert words in page.words
    assert set(page.data["charts"]) == {
        "quality",
        "deviation",
        "latency-attention-heads",
        "latency-ffn-columns",
        "search",
    }
    assert page.data["chosen"] == "run/2x"
    assert "none in layers 10, 11" in page.data["sentences"]["run/2x"]


def test_alternatives_have_letters_in_the_chart_and_a_table_that_explains_them(tmp_path: Path) -> None:
    unknown = {"name": "something else"}
    page = page_of(write_run(tmp_path / "run", alternatives=[*ALTERNATIVES, unknown]))
    marks = [row for row in page.data["charts"]["quality"]["data"]["values"] if row["kind"] == "alternative"]
    assert [(row["label"], row["name"]) for row in marks] == [("A", "dense + int8"), ("B", "6 of 12 layers")]
    for words in (
        "mark alternative speedup, 99 % interval accuracy, 95 % interval on disk what it is",
        "A dense + int8 2.20x [2.18, 2.23] 0.9197 ±0.0207 110 MB The dense model with weights",
        "B 6 of 12 layers 1.93x 0.8930 – Every second layer removed.",
        "– something else – – –",
        "A: dense + int8 alternative 2.20x",
    ):
        assert words in page.words


def test_letters_continue_over_several_runs(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, alternatives=ALTERNATIVES) for name in ("one", "other")]
    page = page_of(*folders)
    marks = [row for row in page.data["charts"]["quality"]["data"]["values"] if row["kind"] == "alternative"]
    assert [row["label"] for row in marks] == ["A", "B", "C", "D"]
    assert "C dense + int8 2.20x" in page.words


def test_the_latency_of_a_quantised_run_is_not_called_float32() -> None:
    environment = {**ENVIRONMENT, "engine": "onnxruntime", "quantization": "int8"}
    assert ", engine onnxruntime, int8, 1 thread," in environment_text(environment)


def test_every_chart_has_a_place_a_description_and_a_table(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", gradual=True))
    places = [attributes["data-chart"] for _, attributes in page.tags if "data-chart" in attributes]
    assert set(places) == set(page.data["charts"])
    assert {"training-loss", "training-metric"} < set(places)
    described = [
        attributes["aria-label"] or "" for _, attributes in page.tags if attributes.get("role") == "img"
    ]
    assert len(described) == len(places)
    assert all(text.startswith("Chart: ") and len(text) > 50 for text in described)
    assert [tag for tag, _ in page.tags].count("details") == len(places)
    assert "Loss: 1 x logits + 0.5 x hidden states." in page.words


def test_text_from_files_is_escaped(tmp_path: Path) -> None:
    """A page of hostile names has the same tags as one of harmless names, and its data reads back."""
    pages = {}
    for name, text in {"harmless": "word", "hostile": EVIL}.items():
        changes: dict[str, Any] = {
            "target": {"name": text, "kind": "speedup", "value": 2.0},
            "metric": {"name": text, "dense": 0.9, "compressed": 0.8},
            "command": text,
            "versions": {text: text},
            "environment": {**ENVIRONMENT, "device_name": text, "details": {text: text}},
            "sizes": {text: [1, 2]},
            "dense_sizes": {text: 2},
        }
        folder = write_run(tmp_path / name, (), model=text, alternatives=[{"name": text, "sentence": text}])
        report = json.loads((write_run(tmp_path / f"{name}-whole", (2.0,)) / "2x/metrics.json").read_text())
        write_json(folder / "2x" / "metrics.json", {**report, **changes})
        write_json(folder / "state" / "targets" / "x" / "search.json", {"evaluations": [[[0], 1.0, 0.0]]})
        pages[name] = page_of(folder)
    tags = {name: [tag for tag, _ in page.tags] for name, page in pages.items()}
    assert tags["hostile"] == tags["harmless"]
    assert tags["hostile"].count("script") == 3
    assert "img" not in tags["hostile"]
    assert not any(name.startswith("on") for _, attributes in pages["hostile"].tags for name in attributes)
    assert EVIL in " ".join(pages["hostile"].text)  # shown as it is, not evaluated
    assert EVIL in json.dumps(pages["hostile"].data, ensure_ascii=False).replace('\\"', '"')


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", (2.0, 4.0), measured=None))
    assert "The speedup of 2x and 4x was not measured: it is what the latency table predicts." in page.words
    assert "predicted speedup over the dense model" in json.dumps(page.data)
    assert "Hollow marks are speedups that the latency table predicts" in page.words
    measured = page_of(write_run(tmp_path / "measured", (2.0, 4.0)))
    assert "not measured" not in measured.words


def test_a_busy_machine_and_missed_targets_are_said(tmp_path: Path) -> None:
    measured = {"speedup": 1.8, "low": 1.7, "high": 1.9, "seconds": 0.1, "dense_seconds": 0.18}
    busy = {**ENVIRONMENT, "load_average": 9.0}
    words = page_of(write_run(tmp_path / "run", (2.0,), measured=measured, environment=busy)).words
    assert "The machine was busy when the latency table was measured: its load was 9 on 8 cores." in words
    assert "2x is 10.0 % slower than its target." in words
    calm = page_of(write_run(tmp_path / "calm", (2.0,))).words
    assert "busy" not in calm
    assert "than its target." not in calm


@pytest.mark.parametrize("load", ["8", None, [], {}])
def test_a_load_that_is_no_number_is_not_mentioned(tmp_path: Path, load: Any) -> None:
    folder = write_run(tmp_path / "run", (2,), environment={**ENVIRONMENT, "load_average": load})
    assert "The machine was busy" not in " ".join(caveats([read_run(folder)]))


def test_no_member_within_99_per_cent_is_said(tmp_path: Path) -> None:
    words = page_of(write_run(tmp_path / "run", (6.0,))).words
    assert "No model of this run keeps 99 % of the dense model's accuracy. The closest is 6x" in words


def test_values_that_are_missing_or_unknown_do_no_harm(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", (2.0,))
    report = json.loads((folder / "2x" / "metrics.json").read_text())
    for name in ("search", "environment", "versions", "seed", "command"):
        del report[name]
    report |= {"measured": None, "target": {"name": "3x", "kind": "speedup", "value": 3.0}}
    report |= {"new key": {"of": ["a newer", "version", None]}, "environment": "somewhere"}
    report["training"] = {"epochs": 1.0, "steps": 1, "examples": 1, "losses": [[1, None], [2, 0.5]]}
    (folder / "3x").mkdir()
    (folder / "3x" / "metrics.json").write_text(json.dumps(report), encoding="utf-8")
    page = page_of(folder)
    assert "3.09x predicted" not in page.words
    assert "2.06x predicted" in page.words
    losses = page.data["charts"]["training-loss"]["data"]["values"]
    assert [(row["step"], row["loss"]) for row in losses] == [(2, 0.5)]


def test_several_runs_share_the_page(tmp_path: Path) -> None:
    first = write_run(tmp_path / "one", (2.0, 4.0))
    second = write_run(tmp_path / "two", (2.0,), environment={**ENVIRONMENT, "threads": 4})
    page = page_of(first, second)
    assert "2 runs compared" in page.words
    assert "The runs were measured in different environments (threads)." in page.words
    assert {"one/2x", "one/4x", "two/2x"} == set(page.data["sentences"])
    rows = page.data["charts"]["quality"]["data"]["values"]
    assert [row["run"] for row in rows] == ["one"] * 3 + ["two"] * 2


def test_runs_with_different_metrics_are_compared_by_shares(tmp_path: Path) -> None:
    first = write_run(tmp_path / "one", (2.0,))
    metric = {"name": "perplexity", "dense": 20.0, "compressed": 25.0, "interval": [24.0, 30.0]}
    second = write_run(tmp_path / "two", (2.0,), metric=metric)
    rows = page_of(first, second).data["charts"]["quality"]["data"]["values"]
    assert [row["value"] for row in rows if row["name"] == "dense"] == [100, 100]
    worse = rows[-1]
    assert worse["value"] == pytest.approx(80)
    assert worse["value_low"] < worse["value"] < worse["value_high"]


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", (2.0,))
    mine = tmp_path / "thesis.html"
    mine.write_text("<!DOCTYPE html><title>thesis</title>")
    with pytest.raises(UsageError, match="exists and is not a report of ziplm; choose another --output"):
        write_report([folder], mine)
    assert "thesis" in mine.read_text()
    with pytest.raises(UsageError, match="is a folder"):
        write_report([folder], folder)
    write_report([folder], tmp_path / "report.html")
    before = (tmp_path / "report.html").read_text(encoding="utf-8")
    write_report([folder], tmp_path / "report.html")  # a report of ours is
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == before


@pytest.mark.parametrize("module", ["jinja2", "vl_convert"])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    folder = write_run(tmp_path / "run", (2.0,))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == module else object())
    with pytest.raises(MissingExtra, match=r'run: pip install "ziplm\[report\]"'):
        write_report([folder], folder / "report.html")
    assert not (folder / "report.html").exists()


def test_a_run_without_results_is_refused_before_a_package_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadRun, match="no finished target"):
        write_report([tmp_path], tmp_path / "report.html")


def test_a_damaged_latency_table_or_config_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", (2.0,))
    (folder / "latency.json").write_text("{}")
    with pytest.raises(BadRun, match=r"latency.json is damaged"):
        read_run(folder)
    (folder / "latency.json").unlink()
    assert read_run(folder).latency is None
    (folder / "config.toml").write_text("model =")
    with pytest.raises(BadRun, match=r"config.toml is damaged"):
        read_run(folder)

"""Figures of a run: lines and directions, read from the axes."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from ziplm import BadRun, compress
from ziplm.files import write_json
from ziplm.results.figures import metric_figure, read_reports, sizes_figure, speedup_figure
from ziplm.tasks import TASKS, make_task
from ziplm_compressed import options_for, write_files

DENSE = 0.8


def report(speedup: float, value: float, **metric: Any) -> dict[str, Any]:
    """Return the part of a member's report that is read again."""
    seconds = {"seconds": 1 / speedup, "dense_seconds": 1.0}
    return {
        "target": {"name": f"{speedup:g}x", "kind": "speedup", "value": speedup},
        "measured": {"speedup": speedup, "low": speedup - 0.1, "high": speedup + 0.3, **seconds},
        "predicted": {"speedup": speedup + 0.05, "seconds": 1 / speedup},
        "metric": {"dense": DENSE, "compressed": value, **metric},
        "sizes": {"attention": [2, 0], "ffn": [6, 12]},
        "dense_sizes": {"attention": 4, "ffn": 12},
        "parameters": {"all": 5, "layers": 3},
        "dense_parameters": {"all": 9, "layers": 7},
        "bytes_on_disk": 100,
        "seconds": {"search": 1.5},
    }


def axes() -> Axes:
    return Figure().subplots()


def heights(drawn: Axes) -> dict[str, list[float]]:
    """Return the y values of all lines by label."""
    return {str(line.get_label()): list(line.get_ydata()) for line in drawn.get_lines()}


@pytest.mark.parametrize(
    ("metric", "share"),
    [
        ({"name": "accuracy", "greater_is_better": True}, DENSE * 0.99),
        ({"name": "perplexity", "greater_is_better": False}, DENSE / 0.99),
        ({"name": "error", "greater_is_better": False}, DENSE / 0.99),  # the name does not matter
        # Reports of version 0.1 do not tell the direction.
        ({"name": "accuracy"}, DENSE * 0.99),
        ({"name": "perplexity"}, DENSE / 0.99),
    ],
)
def test_the_recovery_line_is_on_the_worse_side_of_the_dense_line(
    metric: dict[str, Any], share: float
) -> None:
    drawn = axes()
    metric_figure(drawn, [report(2.0, 0.7, **metric), report(4.0, 0.6, **metric)])
    lines = heights(drawn)
    assert lines["compressed"] == [0.7, 0.6]
    assert set(lines["dense"]) == {DENSE}
    assert lines["99% of dense"] == pytest.approx([share] * 2)
    assert drawn.get_ylabel() == metric["name"]


def test_perplexity_is_the_only_main_metric_that_is_better_if_lower() -> None:
    """The figure of a report without a direction relies on it."""
    tasks = [make_task(name) for name in TASKS]
    assert {task.metric for task in tasks if not task.greater_is_better} == {"perplexity"}
    assert all(task.greater_is_better for task in tasks if task.metric != "perplexity")


@pytest.mark.parametrize(("architecture", "greater_is_better"), [("bert", True), ("gpt2", False)])
def test_reports_tell_the_direction_of_their_metric(
    tmp_path: Path, architecture: str, greater_is_better: bool
) -> None:
    files = write_files(tmp_path)
    (member,) = compress(**options_for(files, architecture, tmp_path / "run", speedup=[1.5]))
    assert member.metrics["metric"]["greater_is_better"] is greater_is_better
    drawn = axes()
    metric_figure(drawn, read_reports(tmp_path / "run"))
    lines = heights(drawn)
    assert (lines["99% of dense"][0] < lines["dense"][0]) is greater_is_better


def test_a_fit_is_drawn_from_three_targets_on() -> None:
    family = [report(x, 1.0 - 0.1 * x, name="accuracy") for x in (2.0, 3.0, 5.0)]
    drawn = axes()
    metric_figure(drawn, family[:2])
    assert not any(label.startswith("linear fit") for label in heights(drawn))
    drawn = axes()
    metric_figure(drawn, family)
    (line,) = (
        heights(drawn)[label] for label in heights(drawn) if label.startswith("linear fit, slope -0.1 [")
    )
    assert line == pytest.approx([0.8, 0.5])


def test_measured_speedups_have_intervals_and_may_be_missing() -> None:
    drawn = axes()
    speedup_figure(drawn, [report(2.0, 0.7, name="accuracy")])
    ((low, high),) = (
        [point[1] for point in segment] for bars in drawn.collections for segment in bars.get_segments()
    )
    assert (low, high) == pytest.approx((1.9, 2.3))
    drawn = axes()
    speedup_figure(drawn, [{**report(2.0, 0.7, name="accuracy"), "measured": None}])
    assert [text.get_text() for text in drawn.texts] == ["nothing was measured"]


def test_sizes_are_shares_of_the_dense_sizes_layer_by_layer() -> None:
    drawn = axes()
    sizes_figure(drawn, [report(2.0, 0.7, name="accuracy")])
    assert drawn.images[0].get_array().tolist() == [[0.5, 0.5, 0.0, 1.0]]
    assert [label.get_text() for label in drawn.get_xticklabels()] == ["0a", "0f", "1a", "1f"]
    assert [label.get_text() for label in drawn.get_yticklabels()] == ["2x"]


def test_reports_are_read_with_the_slowest_first(tmp_path: Path) -> None:
    with pytest.raises(BadRun, match="has no finished target; finish one with ziplm compress first"):
        read_reports(tmp_path)
    for name, speedup in (("a", 4.0), ("b", 2.0), ("c", 3.0)):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "metrics.json", report(speedup, 0.5, name="accuracy"))
    assert [each["measured"]["speedup"] for each in read_reports(tmp_path)] == [2.0, 3.0, 4.0]

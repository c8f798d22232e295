"""The headline of a report does not call a difference a loss that may be chance."""

from typing import Any

import pytest
from ziplm.results.run_data import RunData
from ziplm.results.summary import headline


def run_with(difference: tuple[float, float] | None) -> RunData:
    report: dict[str, Any] = {
        "target": {"name": "3x"},
        "measured": {"speedup": 3.0, "low": 2.9, "high": 3.1},
        "metric": {
            "name": "accuracy",
            "dense": 0.886,
            "compressed": 0.872,
            "greater_is_better": True,
            "difference_interval": difference,
        },
    }
    return RunData("run", None, (report,), {}, None, {}, None, ())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("difference", "chance"), [((-0.038, 0.012), True), ((-0.038, -0.001), False), (None, False)]
)
def test_a_difference_whose_interval_contains_0_may_be_chance(
    difference: tuple[float, float] | None, chance: bool
) -> None:
    text = headline(run_with(difference))
    assert text.startswith("No model of this run keeps 99 % of the dense model's accuracy.")
    assert ("may be chance" in text) is chance

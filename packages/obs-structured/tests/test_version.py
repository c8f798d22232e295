"""The package states its version and its public names."""

from importlib.metadata import version

import obs_structured


def test_version_is_that_of_the_installed_distribution() -> None:
    assert obs_structured.__version__ == version("obs-structured")


def test_the_public_names_are_the_classes_and_the_functions() -> None:
    classes, functions = (
        ["Moments", "ScoreTrace", "Trace", "WidthTrace"],
        ["narrow_heads", "narrow_scores", "prune"],
    )
    assert obs_structured.__all__ == classes + functions

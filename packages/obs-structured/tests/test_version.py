"""The package states its version."""

from importlib.metadata import version

import obs_structured


def test_version_is_that_of_the_installed_distribution() -> None:
    assert obs_structured.__version__ == version("obs-structured")

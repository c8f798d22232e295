"""The version of the package."""

from importlib.metadata import version

import latency_profiler
from click.testing import CliRunner
from latency_profiler.cli import main


def test_version_is_that_of_the_distribution() -> None:
    assert latency_profiler.__version__ == version("latency-profiler")
    result = CliRunner().invoke(main, ["--version"])
    assert result.stdout.strip().endswith(latency_profiler.__version__)

"""Fixtures that several tests of the pipelines share."""

from pathlib import Path

import pytest
from ziplm import Family, compress
from ziplm_compressed import options_for, write_files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tiny dense models, data for both, and a latency table."""
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def architecture(request: pytest.FixtureRequest) -> str:
    """The name of each dense model in `files`."""
    return str(request.param)


@pytest.fixture(scope="module")
def made(files: Path, architecture: str, tmp_path_factory: pytest.TempPathFactory) -> Family:
    """A one-shot family of two members."""
    output = tmp_path_factory.mktemp("runs") / architecture
    return compress(**options_for(files, architecture, output, speedup=[3, 1.5]))

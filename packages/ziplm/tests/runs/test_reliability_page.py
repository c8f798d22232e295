"""Every test that docs/reliability.md names exists."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parents[2] / "docs" / "reliability.md"
NAMED = re.findall(r"`([\w/-]+\.py)(?:::(\w+))?`", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "name"), NAMED, ids=["::".join(named) for named in NAMED])
def test_a_test_that_is_named_exists(file: str, name: str) -> None:
    folder = TESTS.parents[1] if "/tests/" in file else TESTS  # of all packages, or of ziplm's tests
    assert (folder / file).is_file()
    assert not name or f"def {name}(" in (folder / file).read_text(encoding="utf-8")


def test_the_page_names_tests() -> None:
    """Control of the pattern above."""
    assert len(NAMED) > 60
    assert any(file.startswith("obs-structured/") for file, _ in NAMED)

"""The documentation site has every page of docs/ in its navigation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]


def pages_in(navigation: Any) -> Iterator[str]:
    """Yield the pages of a part of the navigation, at any depth."""
    if isinstance(navigation, str):
        yield navigation
    else:
        parts = navigation.values() if isinstance(navigation, dict) else navigation
        for part in parts:
            yield from pages_in(part)


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert len(pages) > 10
    missing = pages - set(pages_in(navigation))
    assert not missing, "add them to nav in mkdocs.yml"

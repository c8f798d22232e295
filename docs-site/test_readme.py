"""The README shows what the demo printed, and nothing else."""

import re

from readme import BLOCK, FIGURES, PICTURE, ROOT, demo_text

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_in_the_readme_is_what_the_demo_printed() -> None:
    assert BLOCK.findall(README) == [demo_text()]


def test_the_figures_name_no_folder_of_the_machine() -> None:
    for path in FIGURES.rglob("*.*"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"[\"'=]\s*/\w+/", text), path


def test_the_picture_is_small() -> None:
    assert PICTURE.read_bytes().startswith(b"\x89PNG")
    assert PICTURE.stat().st_size < 400_000

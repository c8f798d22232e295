"""Puts the demo into the README: its figures, its table as printed, and a picture of its report.

``nox -s readme`` runs the demo and then ``python docs-site/readme.py build/demo/bert/run``. The figures of
the run are kept in docs-site/demo, without weights. The table, the picture and the report on the site are
made from them, and ``nox -s docs`` checks that the table in the README is what it prints. Without a run,
the table and the picture are made again from the figures that are kept.
"""

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from ziplm.cli.demo import print_result
from ziplm.options.targets import Target
from ziplm.results.family import read_family
from ziplm.results.report_page import write_report
from ziplm.runs.folder import Run

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs-site" / "demo"
PICTURE = ROOT / "docs" / "images" / "report.png"
PLACE = Path("build/demo")
"""Where `nox -s demo` writes."""
KEPT = ("config.toml", "latency.json", "*/metrics.json", "state/targets/*/search.json")
TARGETS = (2.0, 4.0)
COLUMNS = 80
BLOCK = re.compile(r"(?<=<!-- demo: written by `nox -s readme` -->\n```text\n).*?(?=```\n)", re.DOTALL)


def keep_figures(run: Path) -> None:
    """Copy what the table and the report are made of; paths in it become those of `nox -s demo`."""
    shutil.rmtree(FIGURES, ignore_errors=True)
    demo = run.parents[1]
    for path in sorted(each for pattern in KEPT for each in run.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        for name in (str(demo.resolve()), str(demo)):
            text = text.replace(name, PLACE.as_posix())
        kept = FIGURES / path.relative_to(run)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(text, encoding="utf-8")


def demo_text() -> str:
    """Return what the demo prints at its end, from the figures that are kept."""
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        run = PLACE / "bert" / "run"
        shutil.copytree(FIGURES, run)
        family = read_family(Run(run), [Target("speedup", value) for value in TARGETS])
        os.environ.pop("COLUMNS", None)
        print_result("throughput", family, Console(file=printed, width=COLUMNS, highlight=False))
    return "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())


def take_picture(chromium: str) -> None:
    """Take a picture of the first sections of the report."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "report.html"
        write_report([FIGURES], page_file)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1100, "height": 1000}, color_scheme="light")
        page.goto(page_file.as_uri())
        page.wait_for_function("document.documentElement.dataset.drawn === 'light'")
        end = page.locator("#family").bounding_box()
        assert end is not None
        height = end["y"] + end["height"] + 16
        clip = {"x": 0, "y": 0, "width": 1100, "height": height}
        page.screenshot(path=PICTURE, full_page=True, clip=clip)  # type: ignore[arg-type]
        browser.close()


def main() -> None:
    """Keep the figures of a run, if one is given, and write the table and the picture."""
    if sys.argv[1:]:
        keep_figures(Path(sys.argv[1]))
    readme = ROOT / "README.md"
    text = BLOCK.sub(lambda _: demo_text(), readme.read_text(encoding="utf-8"), count=1)
    readme.write_text(text, encoding="utf-8")
    take_picture(os.environ["CHROMIUM"])


if __name__ == "__main__":
    main()

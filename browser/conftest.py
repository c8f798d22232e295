"""A headless Chromium, and the reports of tiny runs that it opens."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from ziplm import compress
from ziplm.results.report_page import write_report
from ziplm_compressed import options_for, write_files
from ziplm_gradual import gradual_options
from ziplm_reports import ALTERNATIVES, write_run

ARGUMENTS = [
    "--no-sandbox",  # root, as in containers, has none
    "--disable-gpu",
    "--no-first-run",
    # The browser itself asks its maker for updates; the pages under test ask for nothing.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The system's Chromium; `nox -s browser` says where it is."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """The folder for screenshots."""
    folder = Path(os.environ.get("SCREENSHOTS", "build/screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"screenshots in {folder.resolve()}", file=sys.stderr)
    return folder


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports of a one-shot and a gradual run and of both, and of a made-up run of a BERT-base."""
    folder = tmp_path_factory.mktemp("browser")
    options = options_for(write_files(folder / "files"), "bert", folder / "oneshot", speedup=[1.1, 1.2, 1.3])
    del options["latency_table"]  # so that its speedups are measured
    compress(**options, profile_seconds=1, measure_seconds=1, clock="cpu")
    (folder / "dense").mkdir()
    compress(**gradual_options(folder / "dense"), output=folder / "gradual")
    write_run(folder / "large", alternatives=ALTERNATIVES)
    runs = {name: [folder / name] for name in ("oneshot", "gradual", "large")}
    runs["compare"] = [folder / "oneshot", folder / "gradual"]
    for name, folders in runs.items():
        write_report(folders, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in runs}

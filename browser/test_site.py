"""The documentation site in a real browser: no errors, and nothing is loaded from elsewhere."""

import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

PAGES = ("index.html", "compress.html", "reports.html", "cli.html", "api/ziplm.html", "recipes/index.html")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each request."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The site, which `nox -s browser` has built, on a port of this machine."""
    handler = partial(Quiet, directory=os.environ["SITE"])
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_errors_and_asks_no_other_server(
    chromium: Browser, address: str, screenshots: Path, name: str, scheme: Any
) -> None:
    context = chromium.new_context(viewport={"width": 1200, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda each: wrong.append(each.url) if not each.url.startswith(address) else None)
    response = page.goto(f"{address}/{name}", wait_until="load")
    assert response is not None
    assert response.ok
    assert page.locator("h1").count() == 1
    page.screenshot(path=screenshots / f"site-{name.replace('/', '-').removesuffix('.html')}-{scheme}.png")
    context.close()
    assert wrong == []

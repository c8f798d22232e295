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

PAGES = (
    "index.html",
    "start.html",
    "environment.html",
    "compress.html",
    "measuring.html",
    "comparison.html",
    "how-it-works.html",
    "reports.html",
    "demo.html",
    "cli.html",
    "api/ziplm.html",
    "recipes/index.html",
    "recipes/everyday.html",
)
WIDTHS = {"light": 1200, "dark": 1200, "phone": 390}


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


@pytest.mark.parametrize("look", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_errors_and_asks_no_other_server(
    chromium: Browser, address: str, screenshots: Path, name: str, look: str
) -> None:
    scheme: Any = "dark" if look == "dark" else "light"
    context = chromium.new_context(viewport={"width": WIDTHS[look], "height": 900}, color_scheme=scheme)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda each: wrong.append(each.url) if not each.url.startswith(address) else None)
    response = page.goto(f"{address}/{name}", wait_until="load")
    assert response is not None
    assert response.ok
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[look]
    missing = "[...document.images].filter(image => !image.naturalWidth).map(image => image.src)"
    assert page.evaluate(missing) == []
    page.screenshot(path=screenshots / f"site-{name.replace('/', '-').removesuffix('.html')}-{look}.png")
    context.close()
    assert wrong == []


def test_a_copied_command_has_no_prompt(chromium: Browser, address: str) -> None:
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{address}/environment.html", wait_until="load")
    page.locator(".highlight button").first.click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text.startsWith('ziplm compress'))")
    assert "$" not in page.evaluate("navigator.clipboard.readText()")
    context.close()

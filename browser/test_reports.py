"""Reports in a real browser: no errors, no requests, usable by mouse, keyboard and screen reader."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from ziplm.files import write_json
from ziplm.results.report_page import write_report
from ziplm_reports import made_up_report, write_run

NAMES = ("oneshot", "gradual", "compare", "large")
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "has_touch": True},
}
Open = Callable[..., Page]


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Open]:
    """Open a page and wait until its charts are drawn; at the end, nothing may have gone wrong in it."""
    wrong: list[str] = []
    contexts = []

    def note_request(url: str, page: Path) -> None:
        if url != page.as_uri() and not url.startswith("data:"):
            wrong.append(f"request: {url}")

    def open_page(file: Path, look: str = "light") -> Page:
        context = chromium.new_context(**LOOKS[look])
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: note_request(request.url, file))
        page.goto(file.as_uri())
        wait_for_charts(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def wait_for_charts(page: Page, *looks: str) -> None:
    """Wait until all charts are drawn, in one of these themes."""
    wanted = json.dumps(looks or ["light", "dark"])
    page.wait_for_function(f"{wanted}.includes(document.documentElement.dataset.drawn)")


def column(page: Page, number: int) -> list[str]:
    return page.locator(f"#models tbody tr td:nth-child({number + 1})").all_inner_texts()


def cut_texts(page: Page) -> list[str]:
    """Return the texts of charts that reach beyond their chart, where they cannot be read."""
    script = """[...document.querySelectorAll("[data-chart] svg")].flatMap((svg) => {
      const place = svg.getBoundingClientRect();
      return [...svg.querySelectorAll("text")]
        .filter((text) => {
          const own = text.getBoundingClientRect();
          const beside = own.left < place.left - 1 || own.right > place.right + 1;
          return text.textContent && (beside || own.bottom > place.bottom + 1);
        })
        .map((text) => text.textContent);
    })"""
    found: list[str] = page.evaluate(script)
    return found


def faults(page: Page) -> list[str]:
    """Return the accessibility faults that axe-core calls serious or critical."""
    violations = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['html'][:120]}"
        for each in violations
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", NAMES)
def test_a_report_is_drawn_accessible_and_as_wide_as_the_screen(
    pages: dict[str, Path], opened: Open, screenshots: Path, name: str, look: str
) -> None:
    page = opened(pages[name], look)
    page.screenshot(path=screenshots / f"{name}-{look}.png", full_page=True)
    places = page.locator("[data-chart]")
    assert places.count() >= 4
    for place in places.all():
        assert place.locator("svg path, svg line").count() > 5
    assert cut_texts(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= LOOKS[look]["viewport"]["width"]
    for summary in page.locator("summary").all():
        summary.click()  # the tables of values are checked as well
    assert faults(page) == []


def test_axe_finds_a_fault_that_is_there(pages: dict[str, Path], opened: Open) -> None:
    """Control of the test above."""
    page = opened(pages["large"])
    page.evaluate("document.querySelector('[data-chart]').parentElement.removeAttribute('aria-label')")
    page.evaluate("document.querySelector('.note').style.color = '#eeeeee'")
    assert len(faults(page)) >= 2


def test_a_text_that_is_cut_is_noticed(pages: dict[str, Path], opened: Open) -> None:
    """Control of the test above."""
    page = opened(pages["large"])
    page.evaluate("document.querySelector('[data-chart] svg text').textContent += '…'.repeat(200)")
    assert len(cut_texts(page)) == 1


def test_headings_sort_the_table(pages: dict[str, Path], opened: Open) -> None:
    page = opened(pages["large"])
    targets = ["1.5x", "2x", "3x", "4x", "6x"]
    assert column(page, 1) == targets
    heading = page.get_by_role("button", name="on disk")
    heading.click()
    assert column(page, 1) == targets[::-1]
    assert page.locator("[aria-sort=ascending]").inner_text().startswith("on disk")
    heading.press("Enter")
    assert column(page, 1) == targets
    assert page.locator("[aria-sort=descending]").count() == 1
    assert page.locator("#sorted").inner_text() == "Sorted by on disk, largest first."


def test_runs_are_sorted_by_name(pages: dict[str, Path], opened: Open) -> None:
    page = opened(pages["compare"])
    page.get_by_role("button", name="run", exact=True).click()
    assert column(page, 1) == sorted(column(page, 1))
    assert column(page, 1)[0] == "gradual"


def test_a_chosen_model_is_highlighted_everywhere(pages: dict[str, Path], opened: Open) -> None:
    page = opened(pages["large"])
    chart = page.locator("[data-chart=quality]")
    before = chart.inner_html()
    assert page.locator("tr[aria-current=true]").count() == 3  # the table and two heat maps
    page.get_by_label("Highlight 4x").check()
    assert page.locator("#chosen").inner_text().startswith("4x keeps ")
    assert page.locator("tr[aria-current=true] th").all_inner_texts() == ["4x", "4x"]
    page.wait_for_function(
        "before => document.querySelector('[data-chart=quality]').innerHTML !== before", arg=before
    )
    page.keyboard.press("ArrowDown")  # as in any group of radio buttons
    assert page.locator("#chosen").inner_text().startswith("6x keeps ")


def test_a_mark_in_a_chart_chooses_its_model(pages: dict[str, Path], opened: Open) -> None:
    page = opened(pages["large"])
    page.locator("[data-chart=quality] .mark-symbol path").nth(3).click(force=True)
    assert page.locator("#models input:checked").get_attribute("value") == "large/3x"


def test_the_button_changes_the_theme_and_the_page_remembers_it(pages: dict[str, Path], opened: Open) -> None:
    page = opened(pages["large"])

    def colour() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = colour()
    button = page.get_by_role("button", name="Dark")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    wait_for_charts(page, "dark")
    assert button.get_attribute("aria-pressed") == "true"
    assert colour() != light
    page.reload()
    wait_for_charts(page, "dark")
    page.get_by_role("button", name="Dark").click()
    wait_for_charts(page, "light")
    assert colour() == light


def test_a_change_of_the_system_theme_is_followed(pages: dict[str, Path], opened: Open) -> None:
    page = opened(pages["large"])
    page.emulate_media(color_scheme="dark")
    wait_for_charts(page, "dark")


def test_the_first_tab_stop_skips_to_the_results(pages: dict[str, Path], opened: Open) -> None:
    page = opened(pages["large"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")


def test_hostile_names_run_no_code(tmp_path: Path, opened: Open) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    folder = write_run(tmp_path / "run", (3.0,), model=evil, alternatives=[{"name": evil, "sentence": evil}])
    metric = {"name": evil, "dense": 0.9, "compressed": 0.8}
    target = {"name": evil, "kind": "speedup", "value": 2.0}
    write_json(
        folder / "2x" / "metrics.json", made_up_report(2.0, metric=metric, target=target, command=evil)
    )
    write_report([folder], tmp_path / "report.html")
    page = opened(tmp_path / "report.html")
    page.locator("[data-chart=quality] .mark-symbol path").nth(1).hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    page.locator("#models input").first.check()
    assert page.locator("img").count() == 0


def test_without_scripts_the_tables_are_still_there(chromium: Browser, pages: dict[str, Path]) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["large"].as_uri())
    assert page.locator("#models tbody tr").count() == 5
    assert page.locator("details table").count() >= 4
    context.close()

"""Measures the chat page and the console in headless Chromium, without a cache: their sizes, and when they paint.

The gateway has 100,000 sessions, which the console lists.
"""

from collections.abc import Iterator
from functools import partial
from statistics import median as middle
from typing import NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

from bench.api_list import MANY, SETTINGS, fill
from bench.daemon import Daemon, started
from bench.table import Row
from tests.page.conftest import BROWSER_FLAGS, find_chromium

TIMES = 15
FIRST_PAINT_MS = 150
ROWS_MS = 150
MAX_KB = 300
BARE_PAGE = "data:text/html,<p>A page with one sentence</p>"
FIRST_PAINT = """() => new Promise((resolve) => {
    const observer = new PerformanceObserver((list) => {
        const [paint] = list.getEntriesByName("first-contentful-paint");
        if (paint) resolve(paint.startTime);
    });
    observer.observe({ type: "paint", buffered: true });
})"""
# Without what the API answers.
SIZE = """() => performance.getEntriesByType("resource").concat(performance.getEntriesByType("navigation"))
    .filter((entry) => !new URL(entry.name).pathname.startsWith("/api/"))
    .reduce((sum, entry) => sum + entry.decodedBodySize, 0)"""
VIEWS = ("sessions", "people", "agents", "schedules", "usage", "logs", "settings", "system", "overview")
# Scrolls the list to a share of its height, and returns after how many milliseconds the rows there have their texts.
SCROLL = """(share) => new Promise((resolve) => {
    const list = document.querySelector(".window");
    const began = performance.now();
    list.scrollTop = list.scrollHeight * share;
    const look = () => {
        const rows = [...list.querySelectorAll(".window-row")];
        const at = list.scrollTop / 64;
        const inView = rows.filter((row) => row.dataset.at >= at && row.dataset.at < at + 5);
        if (inView.length && inView.every((row) => row.dataset.empty === "no")) resolve(performance.now() - began);
        else requestAnimationFrame(look);
    };
    look();
})"""


class Visit(NamedTuple):
    """One visit of a page without a cache: milliseconds to its first paint and until it can be used, and its bytes."""

    painted: float
    usable: float
    size: float


def rows() -> Iterator[Row]:
    with started(SETTINGS, partial(fill, size=MANY)) as daemon, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(BROWSER_FLAGS))
        # In alternation, so that other load on the machine affects all equally. The first of each warms the browser.
        rounds = [(_bare(browser), _chat(browser, daemon), _console(browser, daemon)) for _ in range(TIMES + 1)][1:]
        scrolls = _scrolls(browser, daemon)
        browser.close()
    bare = middle(bare for bare, _, _ in rounds)
    yield from _page_rows("chat page", "message box", [chat for _, chat, _ in rounds], bare)
    yield from _page_rows("console, with all of its views", "overview", [console for *_, console in rounds], bare)
    yield Row(
        what=f"console: rows anywhere in {MANY:,} sessions, after a jump of the scroll bar",
        measured=f"p50 {middle(scrolls):.0f} ms, most {max(scrolls):.0f} ms",
        baseline="",
        target=f"< {ROWS_MS} ms",
        is_met=middle(scrolls) < ROWS_MS,
    )


def _page_rows(what: str, usable: str, visits: list[Visit], bare: float) -> Iterator[Row]:
    painted = sorted(visit.painted for visit in visits)
    size = max(visit.size for visit in visits) / 1000
    yield Row(
        what=f"first paint of the {what.partition(',')[0]}, on loopback",
        measured=f"p50 {middle(painted):.0f} ms, p95 {painted[round(0.95 * (len(painted) - 1))]:.0f} ms; "
        f"{usable}: p50 {middle(visit.usable for visit in visits):.0f} ms",
        baseline=f"a page with one sentence: {bare:.0f} ms",
        target=f"< {FIRST_PAINT_MS} ms",
        is_met=middle(painted) < FIRST_PAINT_MS,
    )
    yield Row(
        what=f"size of the {what}, uncompressed",
        measured=f"{size:.0f} kB",
        baseline="",
        target=f"< {MAX_KB} kB",
        is_met=0 < size < MAX_KB,
    )


def _bare(browser: Browser) -> float:
    context = browser.new_context()
    page = context.new_page()
    page.goto(BARE_PAGE)
    painted: float = page.evaluate(FIRST_PAINT)
    context.close()
    return painted


def _chat(browser: Browser, daemon: Daemon) -> Visit:
    page = _signed_in(browser, daemon)
    page.goto(daemon.url)
    painted: float = page.evaluate(FIRST_PAINT)
    page.get_by_role("textbox", name="Message").wait_for()
    return _end(page, painted, page.evaluate("performance.now()"))


def _console(browser: Browser, daemon: Daemon) -> Visit:
    page = _signed_in(browser, daemon)
    page.goto(f"{daemon.url}/console")
    painted: float = page.evaluate(FIRST_PAINT)
    page.locator(".readiness").wait_for()
    usable: float = page.evaluate("performance.now()")
    for view in VIEWS:  # Their modules are loaded when they are opened.
        page.evaluate("view => { location.hash = `#/${view}`; }", view)
        page.locator(f"main .view.{view}").wait_for()
        page.locator("main .view > *").nth(0).wait_for()
    return _end(page, painted, usable)


def _scrolls(browser: Browser, daemon: Daemon) -> list[float]:
    page = _signed_in(browser, daemon)
    page.goto(f"{daemon.url}/console#/sessions")
    page.locator(".session-row").first.wait_for()
    took: list[float] = [page.evaluate(SCROLL, (number * 0.37) % 1) for number in range(1, TIMES + 1)]
    page.context.close()
    return took


def _signed_in(browser: Browser, daemon: Daemon) -> Page:
    headers = {"Authorization": f"Bearer {daemon.token}"}
    return browser.new_context(extra_http_headers=headers, service_workers="block").new_page()


def _end(page: Page, painted: float, usable: float) -> Visit:
    size: float = page.evaluate(SIZE)
    page.context.close()
    return Visit(painted, usable, size)

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.page.house import House

HERE = Path(__file__).parent
SHOTS = HERE.parents[1] / "test-output"
QUIET = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-gpu",
    "--disable-sync",
    "--no-first-run",
)

expect.set_options(timeout=30_000)


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have all tests of the page in one event loop: a browser belongs to its loop, and takes seconds to start."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("Chromium is not installed")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=list(QUIET))
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def house() -> AsyncIterator[House]:
    async with House().open() as house:
        yield house


@pytest.fixture
def page_url(house: House) -> str:
    """Give a link that lets a browser in, once."""
    return house.login_link()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, page_url: str) -> AsyncIterator[Page]:
    """Open the chat page, let in and connected. Whatever goes wrong in the page's own code fails the test."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    page = await context.new_page()
    page.set_default_timeout(30_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if "Content Security Policy" in line.text else None)
    await page.goto(page_url)
    await page.get_by_text("Connected", exact=True).wait_for()
    yield page
    await context.close()
    assert problems == []


async def shoot(page: Page, name: str) -> None:
    """Keep a picture to look at."""
    await page.screenshot(path=SHOTS / f"{name}.png", animations="disabled")

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Error, Page, Playwright, async_playwright, expect

from tests.page import firefox
from tests.page.fake_gateway import FakeGateway

HERE = Path(__file__).parent
SHOTS = HERE.parents[1] / "test-output"
BROWSER_FLAGS = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-gpu",
    "--disable-sync",
    "--no-first-run",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)

expect.set_options(timeout=30_000)


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of the page in one event loop: a browser belongs to its loop, and takes seconds to start."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def playwright() -> AsyncIterator[Playwright]:
    async with async_playwright() as playwright:
        yield playwright


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium(playwright: Playwright) -> AsyncIterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is not installed")
    browser = await playwright.chromium.launch(executable_path=program, args=list(BROWSER_FLAGS))
    yield browser
    await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def firefox_esr(playwright: Playwright, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    if firefox.find_firefox() is None:
        pytest.skip("Firefox is not installed")
    try:
        browser = await playwright.firefox.launch(
            channel="moz-firefox",
            executable_path=firefox.write_launcher(tmp_path_factory.mktemp("firefox")),
            firefox_user_prefs=firefox.PREFERENCES,
        )
    except Error as problem:  # For example a snap, which may not read the profile.
        pytest.skip(f"Firefox does not start: {problem.message.splitlines()[0]}")
    yield browser
    await browser.close()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Browser:
    """Return the browser of the test: Chromium, unless the test names another one."""
    name = getattr(request, "param", "chromium")
    browser: Browser = request.getfixturevalue({"chromium": "chromium", "firefox": "firefox_esr"}[name])
    return browser


@pytest_asyncio.fixture(loop_scope="session")
async def browser(engine: Browser) -> AsyncIterator[Browser]:
    """Yield a browser without pages. Afterwards, close all pages: their animations would take a processor's time."""
    yield engine
    for context in engine.contexts:
        await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def gateway() -> AsyncIterator[FakeGateway]:
    async with FakeGateway().open() as gateway:
        yield gateway


@pytest.fixture
def page_url(gateway: FakeGateway) -> str:
    """Return a link that signs in one browser."""
    return gateway.login_link()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, page_url: str) -> AsyncIterator[Page]:
    """Open the chat page, signed in and connected. Any error in the page's code fails the test."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800}, base_url=page_url)
    page = await context.new_page()
    page.set_default_timeout(30_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if "Content Security Policy" in line.text else None)
    await page.goto(page_url)
    await page.get_by_text("Connected", exact=True).wait_for()
    await page.bring_to_front()  # In Firefox, a page behind another one does not show where the focus is.
    yield page
    await context.close()  # Errors count until then.
    assert [problem for problem in problems if not firefox.HARMLESS.search(problem)] == []


async def shoot(page: Page, name: str) -> None:
    """Save a screenshot to look at."""
    await page.screenshot(path=SHOTS / f"{name}.png", animations="disabled")

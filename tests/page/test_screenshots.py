"""Visual regressions: screenshots of a fixed set of data, compared with reference images. See docs/web.md."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, ViewportSize, expect

from gateway.contract import Line
from tests.page.console import console
from tests.page.fake_gateway import Chat, FakeGateway
from tests.page.harness import ANSWER, QUESTION, THANKS, WELCOME
from tests.page.screenshots import MAX_PIXELS, NOW, compare, difference, still_context

MORE = """\
| Setting | Default |
|---|---|
| `gateway.max_parallel_turns` | 8 |

- [x] A task group for each part
- [ ] A deadline for each wait
"""
TABLET: ViewportSize = {"width": 820, "height": 1100}
PHONE: ViewportSize = {"width": 390, "height": 844}


@pytest.fixture
def with_conversations(gateway: FakeGateway) -> FakeGateway:
    titles = [
        ("Fix the router", 40, 30),
        ("Bread with rye and caraway", 8, 9),
        ("A title that is too long for its row", 1, 2),
    ]
    filler = Line(role="user", text="…", at=NOW)
    gateway.chats = [
        Chat(number=number, title=title, lines=[filler] * messages, updated_at=NOW - timedelta(hours=hours))
        for number, (title, messages, hours) in enumerate(titles, start=1)
    ]
    lines = [("user", QUESTION), ("assistant", ANSWER), ("user", THANKS), ("assistant", WELCOME + "\n\n" + MORE)]
    gateway.chats.append(Chat(number=4, title="Tasks that do not get lost", updated_at=NOW))
    gateway.chats[-1].lines = [Line(role=role, text=text, at=NOW) for role, text in lines]
    failure = Line(
        role="assistant", text="The API key for `big` was rejected.", at=NOW, is_failure=True, details="HTTP 401"
    )
    gateway.chats.append(Chat(number=5, title="Nothing works", updated_at=NOW))
    gateway.chats[-1].lines = [Line(role="user", text="Hello?", at=NOW), failure]
    gateway.chats.append(Chat(number=6, updated_at=NOW))
    gateway.active = 4
    return gateway


@asynccontextmanager
async def opened(browser: Browser, gateway: FakeGateway, **options: object) -> AsyncIterator[Page]:
    context = await still_context(browser, **options)
    page = await context.new_page()
    await page.goto(gateway.login_link())
    await page.get_by_text("Connected", exact=True).wait_for(state="attached")
    yield page
    await context.close()


async def to_top(page: Page) -> None:
    await page.locator("#scroller").evaluate("node => { node.scrollTop = 0; }")
    await expect(page.get_by_role("button", name="Go to the newest message")).to_be_visible()


async def to_end(page: Page) -> None:
    await page.locator("#scroller").evaluate("node => { node.scrollTop = node.scrollHeight; }")
    await expect(page.get_by_role("button", name="Go to the newest message")).to_be_hidden()


async def test_the_chat_page_looks_as_before(browser: Browser, with_conversations: FakeGateway) -> None:
    async with opened(browser, with_conversations, color_scheme="light") as page:
        await expect(page.locator(".reply pre")).to_be_visible()
        await to_top(page)
        await compare(page, "chat-wide-light")
        await page.set_viewport_size(TABLET)
        await page.locator(".user").last.get_by_role("button", name="Edit").click()
        await expect(page.get_by_role("textbox", name="Edit this message")).to_be_focused()
        await to_end(page)
        await compare(page, "chat-tablet-light")
        await page.keyboard.press("Escape")
        await page.emulate_media(color_scheme="dark")
        await page.set_viewport_size(PHONE)
        await expect(page.locator("form.edit")).to_have_count(0)
        await to_end(page)
        await compare(page, "chat-phone-dark")
        await page.get_by_role("button", name="Show the list of conversations").click()
        await page.get_by_role("button", name="Actions for Fix the router").click()
        await compare(page, "chat-phone-dark-drawer")


async def test_a_failure_and_the_empty_page_look_as_before(browser: Browser, with_conversations: FakeGateway) -> None:
    with_conversations.active = 5
    async with opened(browser, with_conversations, color_scheme="dark") as page:
        await expect(page.get_by_role("button", name="Try again")).to_be_visible()
        await page.get_by_role("button", name="Settings").click()
        await expect(page.get_by_role("menu")).to_be_visible()
        await compare(page, "chat-wide-dark-failure")
        await page.keyboard.press("Escape")
        await page.emulate_media(color_scheme="light")
        await page.set_viewport_size(PHONE)
        with_conversations.active = 6
        await page.reload()
        await expect(page.get_by_text("What's on your mind?")).to_be_visible()
        await compare(page, "chat-phone-light-empty")


async def test_the_console_looks_as_before(browser: Browser, tmp_path: Path) -> None:
    async with console(tmp_path, now=lambda: NOW) as shown:
        context = await still_context(browser, color_scheme="light")
        page = await context.new_page()
        await page.goto(shown.link())
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        transcript = f"sessions/{await shown.session_with('rocket')}"
        for view in ("overview", "sessions", transcript, "usage", "settings"):
            await page.evaluate("path => { location.hash = `#/${path}`; }", view)
            await expect(page.locator(".panel, .window-row a, .message").first).to_be_visible()
            await compare(page, f"console-wide-light-{'transcript' if view == transcript else view}")
        await page.emulate_media(color_scheme="dark")
        await page.set_viewport_size(PHONE)
        await page.evaluate("location.hash = '#/overview'")
        await expect(page.locator(".readiness")).to_be_visible()
        await compare(page, "console-phone-dark-overview")
        await context.close()


CHANGES = (
    "#log .foot { opacity: .5; }",
    ".item.user .body { padding-left: 1.3rem; }",
    ":root { --accent: #2c5a6a; }",
    ".prose { line-height: 1.57; }",
    ".side-foot svg { width: 1rem; }",
)


async def test_a_small_change_is_noticed(browser: Browser, with_conversations: FakeGateway) -> None:
    async with opened(browser, with_conversations, color_scheme="light") as page:
        await expect(page.locator(".reply pre")).to_be_visible()
        await page.evaluate("document.adoptedStyleSheets = [new CSSStyleSheet()]")
        noticed = {}
        for change in CHANGES:
            await page.evaluate("text => document.adoptedStyleSheets[0].replaceSync(text)", change)
            await to_top(page)
            noticed[change] = (await difference(page, "chat-wide-light"))["pixels"] > MAX_PIXELS
        assert all(noticed.values()), noticed

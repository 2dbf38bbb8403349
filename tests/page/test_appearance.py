"""Themes and layout. Screenshots for a person to look at are saved in test-output/."""

from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from gateway.contract import Line
from tests.page.conftest import shoot
from tests.page.fake_gateway import Chat, FakeGateway
from tests.page.harness import ANSWER, QUESTION, THANKS, WELCOME, write


@pytest.fixture
def with_history(gateway: FakeGateway) -> FakeGateway:
    now = datetime.now(UTC)
    titles = [(1, "Fix the router", 40, 30), (2, "Bread with rye and caraway", 8, 9), (3, "Trip to Lisbon", 12, 2)]
    filler = Line(role="user", text="…", at=now)
    gateway.chats = [
        Chat(number=number, title=title, lines=[filler] * messages, updated_at=now - timedelta(hours=hours))
        for number, title, messages, hours in titles
    ]
    gateway.chats.append(Chat(number=4, title="Tasks that do not get lost", updated_at=now))
    gateway.chats[-1].lines = [
        Line(role="user", text=QUESTION, at=now - timedelta(minutes=1)),
        Line(role="assistant", text=ANSWER, at=now),
        Line(role="user", text=THANKS, at=now),
        Line(role="assistant", text=WELCOME, at=now),
    ]
    gateway.active = 4
    return gateway


@pytest_asyncio.fixture(loop_scope="session")
async def chat(with_history: FakeGateway, page: Page) -> Page:
    assert with_history.active == 4
    await page.reload()
    await expect(page.locator(".reply pre")).to_be_visible()
    return page


async def test_light_theme(chat: Page) -> None:
    await expect(chat.locator(".reply ol li")).to_have_count(3)
    await expect(chat.get_by_role("button", name="Copy this code")).to_be_visible()
    assert await background(chat) == "rgb(251, 250, 247)"
    await shoot(chat, "light")


async def test_dark_theme_by_system_and_by_button(chat: Page) -> None:
    await chat.emulate_media(color_scheme="dark")
    assert await background(chat) == "rgb(25, 26, 25)"
    await shoot(chat, "dark")
    await chat.get_by_role("button", name="Switch between light and dark").click()
    assert await background(chat) == "rgb(251, 250, 247)"
    await chat.reload()
    await expect(chat.locator(".reply pre")).to_be_visible()
    assert await background(chat) == "rgb(251, 250, 247)"


async def test_a_narrow_screen_has_a_drawer_and_no_overflow(chat: Page) -> None:
    await chat.set_viewport_size({"width": 390, "height": 844})
    await expect(chat.locator(".session").first).to_be_hidden()
    assert await chat.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await shoot(chat, "narrow")
    await chat.get_by_role("button", name="Show the list of conversations").click()
    await expect(chat.get_by_role("button", name="New chat")).to_be_focused()
    await shoot(chat, "narrow-drawer")
    await chat.locator(".session", has_text="Trip to Lisbon").click()
    await expect(chat.locator("#title")).to_have_text("Trip to Lisbon")
    await expect(chat.locator(".session").first).to_be_hidden()


TABLE = """\
| Setting | Default | What it changes |
|---|---|---|
| `gateway.max_parallel_turns` | 8 | Conversations that are answered simultaneously |
| `session.compaction` | automatic | Whether long conversations are summarised |
"""
LINES_OF_WORDS = """() => {
    const lines = [];
    for (const cell of document.querySelectorAll(".reply th, .reply td")) {
        const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        while (walker.nextNode())
            for (const word of walker.currentNode.data.matchAll(/\\w+/g)) {
                const range = document.createRange();
                range.setStart(walker.currentNode, word.index);
                range.setEnd(walker.currentNode, word.index + word[0].length);
                lines.push(new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size);
            }
    }
    return lines;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_a_wide_table_scrolls_on_a_phone_and_splits_no_word(
    page: Page, gateway: FakeGateway, theme: Literal["light", "dark"]
) -> None:
    gateway.answers["table"] = TABLE
    await page.emulate_media(color_scheme=theme)
    await page.set_viewport_size({"width": 375, "height": 700})
    await write(page, "table")
    await expect(page.locator(".reply:not(.live) td")).to_have_count(6)
    await shoot(page, f"phone-table-{theme}")
    assert set(await page.evaluate(LINES_OF_WORDS)) == {1}
    assert await page.locator(".reply .table").evaluate("frame => frame.scrollWidth > frame.clientWidth")
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [375, 1280])
async def test_a_toast_covers_no_message(page: Page, gateway: FakeGateway, width: int) -> None:
    await page.set_viewport_size({"width": width, "height": 600})
    gateway.answers["long"] = "\n\n".join(f"Paragraph-{number}" for number in range(30))
    await write(page, "long")
    await expect(page.locator(".reply:not(.live) .body")).to_contain_text("Paragraph-29")
    # The toast disappears after a few seconds, so it is measured in the same step that shows it.
    end_of_answer, top_of_toast = await page.evaluate(
        """async () => {
            const { toast } = await import("/shared/toast.js");
            toast("Stopped.");
            for (let frame = 0; frame < 3; frame += 1) await new Promise(requestAnimationFrame);
            const box = (selector) => document.querySelector(selector).getBoundingClientRect();
            return [box(".reply .body > :last-child").bottom, box("#toast").top];
        }"""
    )
    await shoot(page, f"toast-{width}")
    assert end_of_answer <= top_of_toast


async def test_code_can_be_copied(chat: Page) -> None:
    await chat.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await chat.get_by_role("button", name="Copy this code").click()
    await expect(chat.get_by_text("Copied")).to_be_visible()
    assert "asyncio.TaskGroup()" in await chat.evaluate("navigator.clipboard.readText()")


async def background(page: Page) -> str:
    colour: str = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


WATCH_SHIFTS = """() => {
    window.shifts = [];
    const watch = new PerformanceObserver((list) => {
        for (const entry of list.getEntries())
            window.shifts.push([entry.value, entry.sources.map(({ node }) => node?.outerHTML?.slice(0, 80))]);
    });
    watch.observe({ type: "layout-shift" });
}"""


async def test_nothing_jumps_while_an_answer_is_written(page: Page, gateway: FakeGateway) -> None:
    gateway.answers["go"] = f"{ANSWER}\n\n{TABLE}\n\n$$\n\\frac{{a}}{{b}}\n$$\n\n- [x] done\n"
    await write(page, "hello")
    await expect(page.locator(".reply:not(.live)")).to_have_count(1)
    await page.evaluate(WATCH_SHIFTS)
    await write(page, "go")
    await expect(page.locator(".reply:not(.live) math")).to_have_count(1)
    shifts = await page.evaluate("new Promise(requestAnimationFrame).then(() => window.shifts)")
    assert [shift for shift in shifts if shift[0] > 0.005] == []

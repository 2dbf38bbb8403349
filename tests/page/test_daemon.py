"""End to end: a browser, the page, the installed daemon and the offline agent."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.page.conftest import shoot
from tests.page.daemon import Daemon
from tests.page.harness import HELLO, choose_setting, write


@pytest_asyncio.fixture(loop_scope="session")
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    await daemon.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def page_url(daemon: Daemon) -> str:
    return await daemon.start()


async def test_a_conversation_and_a_second_session(page: Page) -> None:
    await expect(page.get_by_text("What's on your mind?")).to_be_visible()
    await write(page, HELLO)
    await expect(page.locator(".user .body")).to_have_text([HELLO])
    await expect(page.locator(".reply:not(.live)")).to_have_count(1)
    await expect(page.get_by_role("button", name="Stop the answer")).to_be_hidden()
    answer = await page.locator(".reply .body").inner_text()
    await shoot(page, "daemon")
    await page.reload()
    await expect(page.locator(".user .body")).to_have_text([HELLO])
    assert await page.locator(".reply .body").inner_text() == answer
    await write(page, "/new Second talk")
    await expect(page.locator(".session")).to_have_count(2)
    await expect(page.locator("#title")).to_have_text("Second talk")
    await expect(page.locator(".log")).not_to_contain_text(HELLO)
    await write(page, "What time is it?")
    await expect(page.locator(".reply:not(.live)")).to_have_count(1)
    await page.locator(".session:not([aria-current])").click()
    await expect(page.locator(".user .body")).to_have_text([HELLO])
    await expect(page.locator("#title")).not_to_have_text("Second talk")


async def test_an_answer_is_streamed(page: Page) -> None:
    await page.evaluate(
        """() => {
            window.sizes = new Set();
            const look = () => window.sizes.add(document.querySelector('.reply .body')?.textContent.length ?? 0);
            new MutationObserver(look).observe(
                document.getElementById('log'), { childList: true, subtree: true, characterData: true }
            );
        }"""
    )
    await write(page, "What can you do?")
    await expect(page.locator(".reply:not(.live)")).to_have_count(1)
    assert len(await page.evaluate("[...window.sizes].filter(Boolean)")) >= 2


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_the_page_survives_a_restart_of_the_daemon(page: Page, daemon: Daemon, how: signal.Signals) -> None:
    await write(page, "Before")
    await expect(page.locator(".reply:not(.live)")).to_have_count(1)
    await daemon.stop(how)
    await expect(page.get_by_text("Connecting…")).to_be_visible()
    await write(page, "After")
    await expect(page.locator(".user.pending .body")).to_have_text("After")
    await daemon.start()
    await expect(page.locator(".user:not(.pending) .body")).to_have_text(["Before", "After"])
    await expect(page.locator(".reply:not(.live)")).to_have_count(2)


async def test_commands_and_drawer_on_a_narrow_screen(page: Page) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    await write(page, "/help")
    await expect(page.locator(".notice")).to_contain_text("/new")
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await shoot(page, "daemon-narrow")
    await page.get_by_role("button", name="Show the list of conversations").click()
    await page.get_by_role("button", name="New chat").click()
    await expect(page.locator(".notice")).to_have_count(0)


async def test_a_long_message_of_multibyte_characters_is_accepted(page: Page) -> None:
    text = "漢" * 31_000  # In UTF-8 three bytes each.
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.locator(".user .body")).to_have_text([text])
    await expect(page.locator(".reply:not(.live)")).to_have_count(1)


async def test_signing_out_invalidates_the_cookie(page: Page) -> None:
    cookies = await page.context.cookies()
    await choose_setting(page, "Sign out")
    await expect(page.get_by_text("Sign in to Gatehouse")).to_be_visible()
    await page.context.add_cookies([{**cookie} for cookie in cookies])  # type: ignore[typeddict-item]  # One type to read, another to write.
    await page.reload()
    await expect(page.get_by_text("Sign in to Gatehouse")).to_be_visible()

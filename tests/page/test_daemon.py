"""The page against the real daemon: what a person does in the first five minutes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.page.conftest import shoot
from tests.running import Running, running, write_config

PATIENCE_MS = 30_000


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    with running(tmp_path) as daemon:
        yield daemon


@pytest.fixture
def page_url(daemon: Running) -> str:
    return daemon.link


async def say(page: Page, text: str) -> None:
    await page.get_by_role("textbox").fill(text)
    await page.keyboard.press("Enter")


async def test_the_first_five_minutes(page: Page) -> None:
    log = page.get_by_role("log")
    await say(page, "my name is Ada")
    await expect(log).to_contain_text("Ada", timeout=PATIENCE_MS)
    await say(page, "what is my name?")
    await expect(log.get_by_text("Your name is")).to_be_visible(timeout=PATIENCE_MS)
    await page.reload()
    await expect(log.get_by_text("Your name is")).to_be_visible(timeout=PATIENCE_MS)
    await say(page, "/new Trip to Lisbon")
    await expect(page.get_by_role("heading", name="Trip to Lisbon")).to_be_visible(timeout=PATIENCE_MS)
    await expect(log.get_by_text("Your name is")).to_be_hidden()
    await page.get_by_role("button", name="my name is Ada").click()
    await expect(log.get_by_text("Your name is")).to_be_visible(timeout=PATIENCE_MS)
    await shoot(page, "daemon")


async def test_the_answer_streams(page: Page) -> None:
    """The page is watched while the answer grows: there must be more than one state of it before the last."""
    await page.evaluate(
        """() => {
            window.lengths = new Set();
            new MutationObserver(() => window.lengths.add(document.querySelector('[role=log]').innerText.length))
                .observe(document.querySelector('[role=log]'), {subtree: true, childList: true, characterData: true});
        }"""
    )
    await say(page, "hello")
    await expect(page.get_by_role("log")).to_contain_text("offline", timeout=PATIENCE_MS)
    await page.wait_for_function("() => window.lengths.size > 4")


async def test_a_kill_9_is_survived_by_page_and_conversation(page: Page, daemon: Running, browser: Browser) -> None:
    await say(page, "my name is Ada")
    await expect(page.get_by_role("log")).to_contain_text("Ada", timeout=PATIENCE_MS)
    await asyncio.to_thread(daemon.wait_for, "message_handled")
    port = daemon.url.rpartition(":")[2]
    daemon.process.kill()
    daemon.process.wait()
    await expect(page.get_by_text("Connected", exact=True)).to_be_hidden(timeout=PATIENCE_MS)
    config = f'[gateway]\ndata_dir = "{{home}}/data"\n[http]\nport = {port}\n'
    write_config(daemon.home, config)
    with Running(daemon.home) as second:
        await asyncio.to_thread(second.ready)
        await expect(page.get_by_text("Connected", exact=True)).to_be_visible(timeout=PATIENCE_MS)
        await say(page, "what is my name?")
        await expect(page.get_by_role("log").get_by_text("Your name is")).to_be_visible(timeout=PATIENCE_MS)
    assert browser.is_connected()

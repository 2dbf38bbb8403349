"""Messages without an answer, on the page of a real gateway: a failed turn, and messages that `/stop` dropped."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from config import Settings
from gateway.agent.protocol import TextDelta
from gateway.build import open_daemon
from gateway.errors import ModelUnavailable
from tests.agent.scripted import ScriptedProvider
from tests.daemon.tools import Gate, agent, call
from tests.page.conftest import shoot
from tests.page.harness import write

SENTENCE = "The API key for gpt was rejected."
DETAILS = "openai/gpt, HTTP 401: invalid_api_key Incorrect API key provided: ***"
ANSWER = [TextDelta(text="Here is the answer.")]


def rejected() -> ModelUnavailable:
    failure = ModelUnavailable(SENTENCE)
    failure.details = DETAILS
    return failure


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def provider() -> ScriptedProvider:
    return ScriptedProvider([rejected()], [rejected()], ANSWER)


@pytest_asyncio.fixture(loop_scope="session")
async def page_url(tmp_path: Path, provider: ScriptedProvider, gate: Gate) -> AsyncIterator[str]:
    settings = Settings.model_validate({"gateway": {"data_dir": tmp_path / "data"}, "http": {"port": 0}})
    async with open_daemon(settings) as daemon, asyncio.TaskGroup() as tasks:
        agent(provider, gate)(daemon)
        ready = asyncio.Event()
        tasks.create_task(daemon.run(ready.set), name="daemon")
        await ready.wait()
        yield daemon.sign_in_link()
        daemon.stop()


async def test_opened_details_do_not_hide_the_button_below_them(page: Page) -> None:
    await page.set_viewport_size({"width": 375, "height": 320})
    await write(page, "What is up?")
    await page.locator(".reply.failure").get_by_text("Details").click()
    await expect(page.get_by_text(DETAILS)).to_be_visible()
    scroller = page.locator("#scroller")
    height = await scroller.evaluate("node => node.scrollHeight - node.clientHeight")
    assert height > 0
    await expect(scroller).to_have_js_property("scrollTop", height)


async def test_a_failed_answer_can_be_retried_and_shows_details(page: Page) -> None:
    await write(page, "What is up?")
    failure, retry = page.locator(".reply.failure"), page.get_by_role("button", name="Try again")
    await expect(failure.locator(".body")).to_have_text([SENTENCE])
    await expect(failure.locator("pre")).to_be_hidden()
    await failure.get_by_text("Details").click()
    await expect(failure.locator("pre")).to_have_text(DETAILS)
    await shoot(page, "failure")
    await page.set_viewport_size({"width": 375, "height": 700})
    await page.emulate_media(color_scheme="dark")
    await shoot(page, "failure-phone-dark")
    await retry.click()
    await expect(failure.locator(".body")).to_have_text([SENTENCE])
    await expect(retry).to_have_count(1)
    await page.reload()
    await expect(failure.locator("pre")).to_have_text([DETAILS])
    await retry.click()
    await expect(page.locator(".reply .body")).to_have_text(["Here is the answer."])
    await expect(page.locator(".user .body")).to_have_text(["What is up?"])
    await expect(retry).to_have_count(0)
    await expect(page.get_by_role("button", name="Stop the answer")).to_be_hidden()


async def test_only_the_newest_failed_answer_can_be_retried(page: Page) -> None:
    for text in ("one", "two"):
        await write(page, text)
        await expect(page.locator(".reply.failure")).to_have_count(1 if text == "one" else 2)
    await expect(page.get_by_role("button", name="Try again")).to_have_count(1)
    await expect(page.locator(".reply").last.get_by_role("button", name="Try again")).to_be_visible()


@pytest.mark.parametrize("provider", [ScriptedProvider([call(1)], ANSWER)])
async def test_a_message_dropped_by_stop_is_marked_and_can_be_sent_again(page: Page, gate: Gate) -> None:
    await write(page, "one")
    await gate.entered.wait()
    await write(page, "two")
    await expect(page.locator(".user.taken")).to_have_count(2)
    await page.get_by_role("button", name="Stop the answer").click()
    dropped = page.locator(".user.dropped")
    await expect(dropped.locator(".body")).to_have_text(["two"])
    await expect(dropped).to_contain_text("Not answered: you stopped it")
    await expect(page.locator(".user.taken .body")).to_have_text(["one"])
    await expect(page.get_by_role("button", name="Stop the answer")).to_be_hidden()
    await shoot(page, "dropped")
    await page.emulate_media(color_scheme="dark")
    await shoot(page, "dropped-dark")
    await page.get_by_role("button", name="Send again").click()
    await expect(page.locator(".reply .body").last).to_have_text("Here is the answer.")
    await expect(page.locator(".user .body")).to_have_text(["one", "two"])
    await expect(dropped).to_have_count(0)

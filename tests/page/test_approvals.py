"""Tool approvals on the page of a real gateway with a scripted model."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from config import Settings
from gateway.agent.protocol import TextDelta
from gateway.build import open_daemon
from tests.daemon.tools import Rocket, agent, launch, scripted
from tests.page.conftest import shoot
from tests.page.harness import write

COMMAND = "rm -rf build && \u202emake\u202c install " + "x" * 900


@pytest.fixture
def rocket() -> Rocket:
    return Rocket()


@pytest_asyncio.fixture(loop_scope="session")
async def page_url(tmp_path: Path, rocket: Rocket) -> AsyncIterator[str]:
    settings = Settings.model_validate({"gateway": {"data_dir": tmp_path / "data"}, "http": {"port": 0}})
    async with open_daemon(settings) as daemon, asyncio.TaskGroup() as tasks:
        agent(scripted([TextDelta(text="I will do that."), launch(COMMAND)]), rocket)(daemon)
        ready = asyncio.Event()
        tasks.create_task(daemon.run(ready.set), name="daemon")
        await ready.wait()
        yield daemon.sign_in_link()
        daemon.stop()


async def test_a_question_survives_a_reload_and_is_answered_by_a_button(page: Page, rocket: Rocket) -> None:
    await write(page, "Build it again")
    question = page.locator(".notice")
    await expect(question).to_contain_text("May I use launch?")
    await expect(question).to_contain_text("\\u202emake")
    await shoot(page, "question")
    await page.reload()
    await expect(question).to_have_count(1)
    await expect(page.locator(".user .body")).to_have_text(["Build it again"])
    assert rocket.launched == []
    await page.get_by_role("button", name="Yes", exact=True).click()
    await expect(page.get_by_role("button", name="No", exact=True)).to_have_count(0)
    await expect(page.locator(".log .item").last).to_contain_text("Done.")
    await shoot(page, "question-answered")
    assert rocket.launched == [COMMAND]


async def test_a_question_is_answered_by_a_word(page: Page, rocket: Rocket) -> None:
    await write(page, "Build it again")
    await expect(page.locator(".notice")).to_contain_text("May I use launch?")
    await write(page, "no")
    await expect(page.locator(".log .reply", has_text="Done.")).to_be_visible()
    await expect(page.get_by_role("button", name="Stop the answer")).to_be_hidden()
    assert rocket.launched == []


async def test_showing_all_of_a_question_does_not_answer_it(page: Page, rocket: Rocket) -> None:
    await write(page, "Build it again")
    await page.get_by_role("button", name="Show all", exact=True).click()
    await expect(page.locator(".notice", has_text="All of launch:")).to_contain_text("x" * 900)
    await page.get_by_role("button", name="Yes", exact=True).click()
    await expect(page.locator(".log .reply", has_text="Done.")).to_be_visible()
    assert rocket.launched == [COMMAND]

"""A tool call of a real coding agent, approved on the page."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.acp.model_server import ModelServer
from tests.acp.real_agents import RealAgent, agent_cases, app, coder, obey
from tests.page.conftest import shoot
from tests.page.daemon import running
from tests.page.harness import write


@pytest_asyncio.fixture(loop_scope="session", params=agent_cases("claude"))
async def page_url(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    agent: RealAgent = request.param
    async with (
        ModelServer(obey) as model,
        running(coder(tmp_path, agent, model.url, channels={"web": {}}), lambda _daemon: None) as daemon,
    ):
        yield daemon.sign_in_link()


async def test_a_button_on_the_page_approves_an_edit(page: Page, tmp_path: Path) -> None:
    notes = app(tmp_path) / "notes.txt"
    await write(page, f"Please take a note. ⟦write {notes} remember the milk⟧")
    question = page.locator(".notice")
    await expect(question).to_contain_text("May coder do this (edit)?")
    await expect(question).to_contain_text("remember the milk")
    await shoot(page, "real-agent-question")
    assert not notes.exists()
    await page.get_by_role("button", name="Yes", exact=True).click()
    await expect(page.locator(".log .item").last).to_contain_text("Result:")
    await shoot(page, "real-agent-answered")
    assert notes.read_text().strip() == "remember the milk"

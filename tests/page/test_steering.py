"""Busy mode `steer` on the page of a real gateway: two messages, one answer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from config import Settings
from gateway.agent.protocol import TextDelta
from gateway.build import open_daemon
from tests.agent.scripted import ScriptedProvider
from tests.daemon.tools import Gate, agent, call
from tests.page.harness import write


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest_asyncio.fixture(loop_scope="session")
async def page_url(tmp_path: Path, gate: Gate) -> AsyncIterator[str]:
    tables = {"gateway": {"data_dir": tmp_path / "data"}, "http": {"port": 0}, "channels": {"web": {"busy": "steer"}}}
    async with open_daemon(Settings.model_validate(tables)) as daemon, asyncio.TaskGroup() as tasks:
        agent(ScriptedProvider([call(1)], [TextDelta(text="Both.")]), gate)(daemon)
        ready = asyncio.Event()
        tasks.create_task(daemon.run(ready.set), name="daemon")
        await ready.wait()
        yield daemon.sign_in_link()
        daemon.stop()


async def test_one_answer_to_two_messages_ends_the_waiting(page: Page, gate: Gate) -> None:
    await write(page, "one")
    await gate.entered.wait()
    await write(page, "two")
    await expect(page.locator(".user.taken")).to_have_count(2)
    gate.leave.set()
    await expect(page.locator(".reply:not(.live) .body")).to_have_text(["Both."])
    await expect(page.get_by_role("button", name="Stop the answer")).to_be_hidden()

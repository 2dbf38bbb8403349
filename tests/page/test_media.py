"""Pictures and recordings that the agent makes, on the page."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest_asyncio
from aiohttp import web
from playwright.async_api import Page, expect

from config import Settings
from gateway.agent.models import ModelInfo
from gateway.agent.protocol import TextDelta
from gateway.build import open_daemon
from gateway.conversation import ToolCall
from tests.agent.media.harness import as_base64, drawing, serving_media, tone
from tests.agent.scripted import ScriptedProvider
from tests.page.conftest import shoot
from tests.page.harness import holds, write

DRAW = ToolCall(id="c1", name="generate_image", input={"prompt": "An evening sky"})
SPEAK = ToolCall(id="c2", name="speak", input={"text": "Good evening"})


@pytest_asyncio.fixture(loop_scope="session")
async def page_url(tmp_path: Path) -> AsyncIterator[str]:
    """Run a whole gateway whose agent makes a picture and a recording, and give the link to its page."""
    provider = ScriptedProvider([DRAW, SPEAK], [TextDelta(text="Here they are.")])
    async with serving_media(as_base64(drawing())) as painter, serving_media(web.Response(body=tone())) as speaker:
        settings = Settings.model_validate(
            {
                "gateway": {"data_dir": tmp_path / "data"},
                "http": {"port": 0},
                "providers": {"painter": painter.table(), "speaker": speaker.table()},
                "tools": {"images": {"provider": "painter"}, "speech": {"provider": "speaker"}},
            }
        )
        async with open_daemon(settings) as daemon, asyncio.TaskGroup() as tasks:
            info = ModelInfo(name="eyes")
            daemon.agents.replace("main", lambda main: replace(main, provider=provider, info=info))
            ready = asyncio.Event()
            tasks.create_task(daemon.run(ready.set), name="daemon")
            await ready.wait()
            yield daemon.sign_in_link()
            daemon.stop()


async def test_a_picture_is_shown_and_a_recording_can_be_played(page: Page, tmp_path: Path) -> None:
    await write(page, "Draw the sky and say good evening")
    for _ in range(2):  # As they come, and from the history.
        image = page.locator(".thumbnail img")
        await expect(image).to_have_attribute("alt", "An_evening_sky.png")
        await holds(page, "document.querySelector('.thumbnail img').naturalWidth === 320")
        await holds(page, "Math.abs(document.querySelector('audio').duration - 0.5) < 0.01")
        await expect(page.locator("a.download").last).to_contain_text("speech.wav")
        await shoot(page, "media")
        await page.reload()
    async with page.expect_download() as downloading:
        await page.locator("a.download").first.click()
    download = await downloading.value
    assert download.suggested_filename == "An_evening_sky.png"
    assert await asyncio.to_thread((await download.path()).read_bytes) == drawing()
    for stored in (tmp_path / "data/files").rglob("*.png"):
        stored.unlink()
    await page.reload()
    await expect(page.locator(".thumbnail")).to_have_count(0)  # A picture that is gone is a link with its name.
    await expect(page.locator("a.download")).to_have_count(2)

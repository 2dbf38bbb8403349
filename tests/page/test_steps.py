"""Tool calls, while they run and afterwards, and the pictures of messages, with a real daemon."""

import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import FilePayload, Page, expect

from gateway.agent.protocol import TextDelta
from gateway.conversation import ToolCall
from tests.agent.scripted import ScriptedProvider
from tests.daemon.harness import settings
from tests.daemon.tools import Gate, agent
from tests.page.conftest import shoot
from tests.page.daemon import running
from tests.page.harness import BOTH, holds, write

HOSTILE = "<img src=x onerror=alert(1)>"


def png(width: int = 320, height: int = 200) -> bytes:
    rows = b"".join(
        b"\0" + bytes((x % 256, 120, y % 256)[i] for x in range(width) for i in range(3)) for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest_asyncio.fixture(loop_scope="session")
async def page_url(tmp_path: Path, gate: Gate) -> AsyncIterator[str]:
    look = ToolCall(id="call0", name="wait", input={})
    hostile = ToolCall(id="call1", name="wait", input={"x": HOSTILE})
    model = ScriptedProvider(
        [TextDelta(text="I'll look."), look], [hostile], [TextDelta(text="Done.")], [TextDelta(text="Yes.")]
    )
    async with running(settings(tmp_path, channels={"web": {}}), agent(model, gate)) as daemon:
        yield daemon.sign_in_link()


@BOTH
async def test_tool_calls_are_visible_while_they_run_and_folded_afterwards(page: Page, gate: Gate) -> None:
    await write(page, "Please wait")
    steps = page.locator(".steps")
    await expect(steps).to_have_attribute("open", "")
    await expect(steps.get_by_role("img", name="running")).to_be_visible()
    await expect(steps.locator("summary").first).to_contain_text("1 step · wait")
    await shoot(page, "steps-running")
    gate.leave.set()
    await expect(page.locator(".reply:not(.live) .body").last).to_contain_text("Done.")
    await expect(steps.locator("> summary")).to_contain_text("2 steps · wait")
    await expect(steps).not_to_have_attribute("open", "")
    await steps.locator("> summary").click()
    await steps.locator(".step").last.locator("summary").click()
    await expect(steps.locator(".step").last).to_contain_text(HOSTILE)
    await shoot(page, "steps-done")
    assert await page.locator("#log img").count() == 0
    await page.reload()
    await expect(steps).to_have_count(1)
    await expect(steps).not_to_have_attribute("open", "")
    # They stand between the question and the answer.
    kinds = await page.locator("#log > *").evaluate_all(
        "nodes => nodes.map((node) => node.classList[1] ?? node.className)"
    )
    assert kinds.index("user") < kinds.index("steps") < kinds.index("reply")


async def test_pictures_have_thumbnails_that_open(page: Page, gate: Gate) -> None:
    gate.leave.set()
    picture = FilePayload(name='a "<b>.png', mimeType="image/png", buffer=png())
    await page.locator("#picker").set_input_files([picture])
    await expect(page.locator("#files img")).to_be_visible()
    await expect(page.locator("#files .loading")).to_have_count(0)
    await write(page, "What is this?")
    thumbnail = page.locator(".user .thumbnail")
    await expect(thumbnail).to_be_visible()
    await expect(page.locator(".user .body > div").first).to_have_text("What is this?")
    await holds(page, "document.querySelector('.thumbnail img').naturalWidth === 320")
    await thumbnail.click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await shoot(page, "picture")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(page.locator(".user").get_by_role("button", name="Edit")).to_have_count(0)

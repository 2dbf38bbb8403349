"""Files on the page: attached to a message, and downloaded from an answer."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import FilePayload, Page, expect

from config import Settings
from gateway.agent.models import ModelInfo
from gateway.agent.protocol import TextDelta
from gateway.build import open_daemon
from gateway.conversation import ToolCall, UserMessage
from tests.agent.scripted import ScriptedProvider
from tests.daemon.harness import workspace
from tests.files.samples import png
from tests.page.conftest import shoot
from tests.page.harness import BOTH

SEND = ToolCall(id="c1", name="send_file", input={"path": "report.txt"})


@pytest.fixture
def provider() -> ScriptedProvider:
    return ScriptedProvider([SEND], [TextDelta(text="Here is the report.")])


@pytest_asyncio.fixture(loop_scope="session")
async def page_url(tmp_path: Path, provider: ScriptedProvider) -> AsyncIterator[str]:
    """Run a whole gateway whose agent sends a file, and give the link to its page."""
    providers = {"deaf": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}}
    settings = Settings.model_validate(
        {
            "gateway": {"data_dir": tmp_path / "data"},
            "http": {"port": 0},
            "transcription": {"provider": "deaf"},
            "providers": providers,
        }
    )
    async with open_daemon(settings) as daemon, asyncio.TaskGroup() as tasks:
        sees = ModelInfo(name="eyes", sees_images=True)
        daemon.agents.replace("main", lambda main: replace(main, provider=provider, info=sees))
        (workspace(tmp_path, "agent:main:web:direct:owner") / "report.txt").write_text("All is well.")
        ready = asyncio.Event()
        tasks.create_task(daemon.run(ready.set), name="daemon")
        await ready.wait()
        yield daemon.sign_in_link()
        daemon.stop()


@BOTH
async def test_files_are_sent_and_downloaded(page: Page, provider: ScriptedProvider) -> None:
    async with page.expect_file_chooser() as choosing:
        await page.get_by_role("button", name="Add files").click()
    chooser = await choosing.value
    picture = FilePayload(name="cat.png", mimeType="image/png", buffer=png())
    await chooser.set_files([picture, FilePayload(name="notes.txt", mimeType="text/plain", buffer=b"buy milk")])
    await expect(page.locator("#files li")).to_have_count(2)
    await expect(page.locator("#files .loading")).to_have_count(0)
    await page.get_by_role("button", name="Remove notes.txt").hover()
    await shoot(page, "files-chosen")
    await page.get_by_role("textbox", name="Message").fill("What is this?")
    await page.keyboard.press("Enter")
    link = page.locator(".reply a.download")
    await expect(link).to_contain_text("report.txt")
    await expect(page.locator("#files li")).to_have_count(0)
    in_order: list[str | re.Pattern[str]] = ["Here is the report.", re.compile("report.txt")]
    await expect(page.locator(".reply .body")).to_have_text(in_order)
    await shoot(page, "files-sent")
    (asked,) = [message for message in provider.prompts[0].messages if isinstance(message, UserMessage)]
    assert [picture.data for picture in asked.pictures] == [png()]
    assert "```\nbuy milk\n```" in asked.text
    await page.reload()
    await expect(page.locator(".user .body")).to_contain_text(["What is this?"])
    await expect(page.locator(".user").get_by_role("button", name="Show cat.png")).to_be_visible()
    await expect(page.locator(".user .download")).to_contain_text("notes.txt")
    await expect(link).to_have_count(1)
    await expect(page.locator(".reply .body")).to_have_text(in_order)
    async with page.expect_download() as downloading:
        await link.click()
    download = await downloading.value
    assert download.suggested_filename == "report.txt"
    path = await download.path()
    assert await asyncio.to_thread(path.read_text) == "All is well."


async def test_a_dropped_file_can_be_removed(page: Page) -> None:
    await page.evaluate(
        """() => {
            const files = new DataTransfer();
            files.items.add(new File(["x"], "dropped.txt"));
            const chat = document.getElementById("chat");
            for (const type of ["dragover", "drop"])
                chat.dispatchEvent(new DragEvent(type, { dataTransfer: files, bubbles: true }));
        }"""
    )
    await expect(page.locator("#files li")).to_contain_text("dropped.txt")
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    await page.get_by_role("button", name="Remove dropped.txt").click()
    await expect(page.locator("#files li")).to_have_count(0)
    await expect(page.get_by_role("button", name="Send")).to_be_disabled()


async def test_a_file_that_is_already_in_the_history_is_shown_once(page: Page) -> None:
    """The history may be read between the end of a turn and the arrival of its file."""
    await page.evaluate(
        """async () => {
            const { receive } = await import("/chat/socket.js");
            const file = { name: "a.txt", size: 1, url: "/files/s/a.txt?name=a.txt" };
            const line = { role: "assistant", text: "[file: a.txt]", at: new Date().toISOString(), file };
            receive({ type: "history", session: null, lines: [line] });
            receive({ type: "message", key: "k.file1", kind: "reply", text: line.text, at: line.at, file });
        }"""
    )
    await expect(page.locator("a.download")).to_have_count(1)


async def test_pasted_text_over_the_limit_becomes_a_file(page: Page, provider: ScriptedProvider) -> None:
    box = page.get_by_role("textbox", name="Message")
    await box.fill("Please summarise this.")
    await paste(page, "a short text")
    await expect(box).to_have_value("Please summarise this.a short text")
    await expect(page.locator("#files li")).to_have_count(0)
    await paste(page, "long 🙂 " * 6_000)
    await paste(page, "x" * 32_001)
    await expect(box).to_have_value("Please summarise this.a short text")
    await expect(page.locator("#files li")).to_contain_text(["pasted-1.txt · 60 kB", "pasted-2.txt · 32 kB"])
    await expect(page.locator("#toast")).to_contain_text("attached as a file")
    await shoot(page, "pasted-as-a-file")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator(".user .body")).to_contain_text("pasted-1.txt")
    await expect(page.locator(".reply .body").first).to_contain_text("Here is the report.")
    (asked,) = [message for message in provider.prompts[0].messages if isinstance(message, UserMessage)]
    assert "Please summarise this." in asked.text
    assert "pasted-2.txt" in asked.text


async def test_a_long_paste_becomes_a_file_or_text_again(page: Page) -> None:
    box = page.get_by_role("textbox", name="Message")
    await paste(page, "word " * 2_000)
    await expect(page.locator("#files")).to_contain_text("pasted-1.txt · 10 kB")
    await page.get_by_role("button", name="Insert as text").click()
    await expect(page.locator("#files li")).to_have_count(0)
    await expect(box).to_have_value("word " * 2_000)


@BOTH
async def test_a_recording_is_sent_as_a_voice_message(page: Page, provider: ScriptedProvider) -> None:
    await page.get_by_role("button", name="Record a voice message").click()
    await expect(page.get_by_role("timer")).to_have_text("0:01")
    await shoot(page, "recording")
    await page.get_by_role("button", name="Stop the recording").click()
    await expect(page.locator("#files")).to_contain_text("voice.webm ·")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator(".reply .body").first).to_contain_text("Here is the report.")
    (asked,) = [message for message in provider.prompts[0].messages if isinstance(message, UserMessage)]
    # No server transcribes here, so the agent is told why.
    assert re.search(r"\[voice: voice\.webm, audio/webm, .*could not be transcribed", asked.text)


async def paste(page: Page, text: str) -> None:
    """Copy a text and paste it into the message box."""
    await page.evaluate(
        """(text) => {
            const source = document.createElement("textarea");
            source.id = "source";
            source.value = text;
            document.body.append(source);
            source.select();
        }""",
        text,
    )
    await page.keyboard.press("Control+C")
    await page.evaluate("document.getElementById('source').remove()")
    await page.get_by_role("textbox", name="Message").focus()
    await page.keyboard.press("Control+V")

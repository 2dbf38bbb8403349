"""What people do with messages and sessions on the page, with a real daemon and a model that repeats them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.daemon.harness import Parrot, settings
from tests.page.conftest import shoot
from tests.page.daemon import running
from tests.page.harness import BOTH, choose_setting, write

ANSWERS = ".reply:not(.live) .body"
QUESTIONS = ".user .body"
MODELS = {"small": {"context_tokens": 32_000}, "large": {"context_tokens": 64_000}}


@pytest.fixture
def parrot() -> Parrot:
    return Parrot()


@pytest_asyncio.fixture(loop_scope="session")
async def page_url(tmp_path: Path, parrot: Parrot) -> AsyncIterator[str]:
    parrot.may_answer.set()
    configured = settings(
        tmp_path,
        channels={"web": {}},
        agents={"main": {"provider": "local", "model": "small"}, "other": {}},
        providers={"local": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "models": MODELS}},
    )
    async with running(configured, parrot.installed) as daemon:
        yield daemon.sign_in_link()


async def ask(page: Page, *texts: str) -> None:
    for text in texts:
        await write(page, text)
        await expect(page.locator(ANSWERS).last).to_have_text(f"heard: {text}")


async def choose(page: Page, title: str, action: str) -> None:
    await page.locator(".row", has_text=title).hover()
    await page.locator(".row", has_text=title).get_by_role("button", name="Actions for").click()
    await page.get_by_role("menuitem", name=action).click()


@BOTH
async def test_an_edited_message_replaces_everything_below_it(page: Page, parrot: Parrot) -> None:
    await ask(page, "one", "two", "three")
    await page.locator(".user", has_text="two").get_by_role("button", name="Edit").click()
    field = page.get_by_role("textbox", name="Edit this message")
    await expect(field).to_be_focused()
    await shoot(page, "edit")
    await page.keyboard.press("Escape")
    await expect(field).to_have_count(0)
    await expect(page.locator(QUESTIONS)).to_have_text(["one", "two", "three"])
    await page.locator(".user", has_text="two").get_by_role("button", name="Edit").click()
    await field.fill("2")
    await page.keyboard.press("Enter")
    await expect(page.locator(ANSWERS)).to_have_text(["heard: one", "heard: 2"])
    assert parrot.heard[-1] == ["one", "2"]
    await page.reload()
    await expect(page.locator(QUESTIONS)).to_have_text(["one", "2"])


async def test_an_answer_is_written_again(page: Page, parrot: Parrot) -> None:
    await ask(page, "one", "two")
    await expect(page.get_by_role("button", name="Write this answer again")).to_have_count(1)
    parrot.may_answer.clear()
    await page.get_by_role("button", name="Write this answer again").click()
    await expect(page.locator(ANSWERS)).to_have_text(["heard: one"])
    parrot.may_answer.set()
    await expect(page.locator(ANSWERS)).to_have_text(["heard: one", "heard: two"])
    assert parrot.heard[-1] == ["one", "two"]
    await page.reload()
    await expect(page.locator(ANSWERS)).to_have_text(["heard: one", "heard: two"])


async def test_messages_are_copied_as_they_were_written(page: Page) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await write(page, "**bold**")
    await expect(page.locator(ANSWERS)).to_have_text("heard: bold")
    for kind, text in (("user", "**bold**"), ("reply", "heard: **bold**")):
        await page.locator(f".{kind}").get_by_role("button", name="Copy").click()
        await expect(page.locator(f".{kind}").get_by_role("button", name="Copied")).to_be_visible()
        assert await page.evaluate("navigator.clipboard.readText()") == text


@BOTH
async def test_a_session_is_renamed_archived_found_restored_and_deleted(page: Page) -> None:
    await ask(page, "Where do puffins live?")
    await page.get_by_role("button", name="New chat").click()
    await ask(page, "Trip to Lisbon")
    await choose(page, "puffins", "Rename")
    await page.get_by_label("Title").fill("Birds <b>")
    await page.keyboard.press("Enter")
    await expect(page.locator(".row .name")).to_have_text(["Trip to Lisbon", "Birds <b>"])
    await choose(page, "Birds <b>", "Archive")
    await expect(page.locator(".row .name")).to_have_text(["Trip to Lisbon"])
    await page.get_by_role("searchbox", name="Search").fill("puffin")
    await page.locator("#hits .session").first.click()
    await expect(page.locator("#title")).to_have_text("Birds <b>")
    await expect(page.locator(QUESTIONS)).to_have_text(["Where do puffins live?"])
    await choose(page, "Birds <b>", "Delete")
    await expect(page.get_by_role("dialog")).to_contain_text("Birds <b>")
    await shoot(page, "delete-dialog")
    await page.get_by_role("button", name="Delete", exact=True).click()
    await expect(page.locator(".row .name")).to_have_text(["Trip to Lisbon"])
    await expect(page.locator(QUESTIONS)).to_have_text(["Trip to Lisbon"])


async def test_titles_are_filtered_as_a_person_types(page: Page) -> None:
    await ask(page, "Puffins")
    await page.get_by_role("button", name="New chat").click()
    await ask(page, "Lisbon")
    search = page.get_by_role("searchbox", name="Search")
    await search.fill("puf")
    await expect(page.locator(".row .name")).to_have_text(["Puffins"])
    await search.fill("nothing like it")
    await expect(page.get_by_text("Nothing found.")).to_be_visible()
    await search.press("Escape")
    await expect(page.locator(".row .name")).to_have_text(["Lisbon", "Puffins"])


async def test_the_archive_lists_what_was_put_away(page: Page) -> None:
    await choose_setting(page, "Archived conversations")
    await expect(page.get_by_text("There are no archived conversations.")).to_be_visible()
    await page.get_by_role("button", name="Close").click()
    await ask(page, "Puffins")
    await choose(page, "Puffins", "Archive")
    await expect(page.locator(".row")).to_have_count(0)
    await choose_setting(page, "Archived conversations")
    await shoot(page, "archive")
    await page.get_by_role("button", name="Bring Puffins back").click()
    await expect(page.locator(QUESTIONS)).to_have_text(["Puffins"])


@BOTH
async def test_the_agent_and_its_model_are_chosen_in_a_menu(page: Page) -> None:
    await ask(page, "hello")
    picker = page.get_by_role("button", name="Who answers")
    await expect(picker).to_have_text("main")
    await picker.click()
    await expect(page.get_by_role("menuitemradio", name="small", exact=True)).to_have_attribute("aria-checked", "true")
    box = await page.get_by_role("menu").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 1280 - 8  # It does not touch the edge of the window.
    await shoot(page, "picker")
    await page.get_by_role("menuitemradio", name="large", exact=True).click()
    await expect(picker).to_have_text("main · large")
    await picker.click()
    await page.get_by_role("menuitemradio", name="other").click()
    await expect(picker).to_have_text("other")

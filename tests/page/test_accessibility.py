"""The page for people who cannot see it or use no mouse: axe-core without violations, and everything by keyboard."""

import asyncio
import os
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Page, expect

from gateway.contract import Line
from tests.page.conftest import shoot
from tests.page.fake_gateway import FakeGateway
from tests.page.harness import ANSWER, HELLO, write

TOOLS = Path(os.environ.get("GATEHOUSE_PAGE_TOOLS") or Path(__file__).parents[2] / ".venv/page-tools")
AXE = TOOLS / "node_modules/axe-core/axe.min.js"
MATHS = "\n\n- [x] done\n- [ ] open\n\n$$\n\\frac{a}{b} = \\sqrt{x}\n$$\n\n| a | b |\n|---|---|\n| 1 | 2 |"
WIDTHS = {"wide": 1280, "tablet": 820, "phone": 390}


async def check(page: Page) -> None:
    """Fail with the rules that the page breaks, and where."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed")
    # Evaluated, because the content security policy forbids a script element.
    await page.evaluate(await asyncio.to_thread(AXE.read_text))
    found = await page.evaluate(
        "axe.run().then(({ violations }) => violations.map((each) => [each.id, each.nodes.map((node) => node.html)]))"
    )
    assert found == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", list(WIDTHS))
async def test_a_conversation_breaks_no_rule(
    page: Page, gateway: FakeGateway, width: str, theme: Literal["light", "dark"]
) -> None:
    await page.emulate_media(color_scheme=theme)
    await page.set_viewport_size({"width": WIDTHS[width], "height": 900})
    gateway.answers[HELLO] = ANSWER + MATHS
    await write(page, HELLO)
    await expect(page.locator(".reply:not(.live) math")).to_be_visible()
    await expect(page.locator(".hl-k").first).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await shoot(page, f"conversation-{width}-{theme}")
    await check(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_menus_and_dialogs_break_no_rule(page: Page, theme: Literal["light", "dark"]) -> None:
    await page.emulate_media(color_scheme=theme)
    await check(page)  # The empty page, with its welcome.
    await page.get_by_role("button", name="Settings").click()
    await page.get_by_role("menu").wait_for()
    await shoot(page, f"settings-{theme}")
    await check(page)
    await page.keyboard.press("Escape")
    await page.locator(".row").hover()
    await page.get_by_role("button", name="Actions for").click()
    await page.get_by_role("menuitem", name="Rename").click()
    await page.get_by_role("dialog").wait_for()
    await check(page)


async def test_a_phone_with_its_drawer_breaks_no_rule(page: Page, gateway: FakeGateway) -> None:
    now = gateway.chat(1).updated_at
    gateway.chat(1).lines = [
        Line(role="user", text="hello", at=now),
        Line(role="assistant", text="No.", at=now, is_failure=True),
    ]
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.reload()
    await page.get_by_role("button", name="Show the list of conversations").click()
    await expect(page.get_by_role("button", name="New chat")).to_be_focused()
    await check(page)


async def test_everything_is_reached_by_keyboard(page: Page) -> None:
    await write(page, HELLO)
    await expect(page.locator(".reply:not(.live)")).to_have_count(1)
    reached = []
    for _ in range(40):
        await page.keyboard.press("Tab")
        reached.append(
            await page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.id")
        )
        # A person sees where the focus is.
        assert await page.evaluate(
            """() => {
                const { outlineStyle } = getComputedStyle(document.activeElement);
                const frame = document.activeElement.closest(".composer, .search");
                return document.activeElement === document.body || outlineStyle !== "none" || frame !== null;
            }"""
        ), reached[-1]
    for name in ("Search", "Settings", "Copy", "Edit", "Write this answer again", "Add files", "Messages"):
        assert name in reached, name
    assert any(name.startswith("Actions for") for name in reached)

from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, expect

from tests.page.fake_gateway import FakeGateway
from tests.page.harness import BOTH

PAYLOADS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "[click](javascript:alert(1))",
    "[click](data:text/html,<script>alert(1)</script>)",
    "![beacon](http://evil.example/pixel.png)",
    '<a href="javascript:alert(1)">x</a>',
    "<iframe src=http://evil.example></iframe>",
    "<style>@import url(http://evil.example/x.css)</style>",
    "`<b>` & &lt;script&gt;alert(1)&lt;/script&gt;",
    "```html\n<script>alert(1)</script>\n```",
    '```" onmouseover=alert(1) x="\ncode\n```',
    "<form action=http://evil.example><input autofocus onfocus=alert(1)></form>",
    "\u202etxt.exe <b>\u2028next</b>",
]


@pytest.mark.parametrize("place", ["from the agent", "from the person", "as a title"])
@BOTH
async def test_hostile_text_is_shown_as_text(page: Page, gateway: FakeGateway, place: str) -> None:
    dialogs: list[str] = []
    foreign_urls: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    page.on("request", lambda request: _note_foreign_url(request.url, foreign_urls))
    everything = "\n\n".join(PAYLOADS)
    if place == "as a title":
        gateway.chat(1).title = everything
    gateway.answers["go"] = everything
    await page.get_by_role("textbox", name="Message").fill(everything if place == "from the person" else "go")
    await page.keyboard.press("Enter")
    await expect(page.locator(".reply:not(.live)")).to_have_count(1)
    await page.reload()
    await expect(page.locator(".reply:not(.live)")).to_have_count(1)
    icons = "svg:not(:has(> use[href^='/shared/icons.svg#']))"  # The page's own icons are allowed.
    for tag in ("script", "img", "iframe", "style", "form", icons, "[onerror]", "[onmouseover]", "[href^=javascript]"):
        await expect(page.locator(f"#log {tag}, #sessions {tag}")).to_have_count(0)
    assert (dialogs, foreign_urls) == ([], [])


def _note_foreign_url(url: str, foreign_urls: list[str]) -> None:
    if urlsplit(url).hostname != "127.0.0.1":
        foreign_urls.append(url)

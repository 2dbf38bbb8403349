"""Set-up shared by the tests of the page."""

from playwright.async_api import Page

HELLO = "Hello, is anybody there?"


async def write(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.keyboard.press("Enter")

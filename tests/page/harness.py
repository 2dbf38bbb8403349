"""Set-up shared by the tests of the page."""

from playwright.async_api import Page

HELLO = "Hello, is anybody there?"


async def write(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.keyboard.press("Enter")


async def choose_setting(page: Page, name: str) -> None:
    await page.get_by_role("button", name="Settings").click()
    await page.get_by_role("menu").get_by_text(name, exact=True).click()

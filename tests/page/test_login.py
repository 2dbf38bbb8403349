from playwright.async_api import Browser, Page, expect

from tests.page.conftest import shoot
from tests.page.house import House


async def test_a_stranger_is_told_how_to_get_in(browser: Browser, house: House) -> None:
    page = await browser.new_page()
    await page.goto(house.url)
    await expect(page.get_by_text("gatehouse link")).to_be_visible()
    await expect(page.get_by_role("textbox", name="Message")).to_be_hidden()
    await shoot(page, "login")


async def test_a_link_works_once_and_leaves_no_trace(browser: Browser, house: House) -> None:
    link = house.login_link()
    page = await browser.new_page()
    await page.goto(link)
    await page.get_by_text("Connected", exact=True).wait_for()
    assert page.url == house.url
    stored = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert link.partition("=")[2] not in stored
    assert "visit" not in stored
    stranger = await browser.new_page()
    await stranger.goto(link)
    await expect(stranger.get_by_text("Sign in to Gatehouse")).to_be_visible()


async def test_a_link_opened_in_the_login_screen_lets_in(browser: Browser, house: House) -> None:
    page = await browser.new_page()
    await page.goto(house.url)
    await expect(page.get_by_text("Sign in to Gatehouse")).to_be_visible()
    await page.goto(house.login_link())
    await page.get_by_text("Connected", exact=True).wait_for()


async def test_the_page_cannot_be_framed_or_told_where_to_connect(page: Page, house: House) -> None:
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    await page.goto(f"{house.url}?server=ws://evil.example/ws&token=x#server=ws://evil.example/ws")
    await page.get_by_text("Connected", exact=True).wait_for()
    assert sockets == [f"ws://127.0.0.1:{house.port}/web/ws"]


async def test_signing_out_closes_the_gate_and_leaves_nothing_behind(page: Page) -> None:
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_text("Sign in to Gatehouse")).to_be_visible()
    assert await page.evaluate("sessionStorage.getItem('gatehouse.outbox')") in {None, "[]"}
    await page.reload()
    await expect(page.get_by_text("Sign in to Gatehouse")).to_be_visible()

from playwright.async_api import Browser, Page, expect

from tests.page.conftest import shoot
from tests.page.fake_gateway import FakeGateway
from tests.page.harness import choose_setting


async def test_the_sign_in_screen_explains_how_to_sign_in(browser: Browser, gateway: FakeGateway) -> None:
    page = await browser.new_page()
    await page.goto(gateway.url)
    await expect(page.get_by_text("gatehouse link")).to_be_visible()
    await expect(page.get_by_role("textbox", name="Message")).to_be_hidden()
    await expect(page.get_by_role("alert")).to_be_hidden()
    await shoot(page, "login")


async def test_a_link_works_once_and_is_not_stored(browser: Browser, gateway: FakeGateway) -> None:
    link = gateway.login_link()
    page = await browser.new_page()
    await page.goto(link)
    await page.get_by_text("Connected", exact=True).wait_for()
    assert page.url == gateway.url
    stored = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert link.partition("=")[2] not in stored
    assert "visit" not in stored
    stranger = await browser.new_page()
    await stranger.goto(link)
    await expect(stranger.get_by_text("Sign in to Gatehouse")).to_be_visible()
    await expect(stranger.get_by_role("alert")).to_contain_text("already been used, or it has expired")
    await shoot(stranger, "login-used")


async def test_a_link_opened_in_the_sign_in_screen_signs_in(browser: Browser, gateway: FakeGateway) -> None:
    page = await browser.new_page()
    await page.goto(gateway.url)
    await expect(page.get_by_text("Sign in to Gatehouse")).to_be_visible()
    await page.goto(gateway.login_link())
    await page.get_by_text("Connected", exact=True).wait_for()


async def test_a_link_that_is_opened_while_the_gateway_restarts_signs_in(
    browser: Browser, gateway: FakeGateway
) -> None:
    page = await browser.new_page()
    await page.goto(gateway.url)
    await expect(page.get_by_text("Sign in to Gatehouse")).to_be_visible()
    link = gateway.login_link()
    await gateway.stop()
    async with page.expect_event("requestfailed", lambda request: request.url.endswith("/auth/exchange")):
        await page.evaluate("(link) => { location.href = link; }", link)
    await gateway.start()
    await page.get_by_text("Connected", exact=True).wait_for()


async def test_the_address_cannot_change_the_server_of_the_page(page: Page, gateway: FakeGateway) -> None:
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    await page.goto(f"{gateway.url}?server=ws://evil.example/ws&token=x#server=ws://evil.example/ws")
    await page.get_by_text("Connected", exact=True).wait_for()
    assert sockets == [f"ws://127.0.0.1:{gateway.port}/web/ws"]


async def test_signing_out_clears_the_page(page: Page) -> None:
    await choose_setting(page, "Sign out")
    await expect(page.get_by_text("Sign in to Gatehouse")).to_be_visible()
    assert await page.evaluate("sessionStorage.getItem('gatehouse.outbox')") in {None, "[]"}
    await page.reload()
    await expect(page.get_by_text("Sign in to Gatehouse")).to_be_visible()

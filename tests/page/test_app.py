"""What makes the page an app: drafts, notifications, installation, and its shell offline."""

from typing import Any

from playwright.async_api import Browser, Page, expect

from tests.page.conftest import shoot
from tests.page.fake_gateway import FakeGateway
from tests.page.harness import BOTH, HELLO, choose_setting, holds, write
from tests.polling import until

SHOWN = """async () => {
    const worker = await navigator.serviceWorker.ready;
    return (await worker.getNotifications()).map(({ title, body }) => [title, body]);
}"""


@BOTH
async def test_each_session_keeps_its_draft_until_it_is_sent(page: Page, gateway: FakeGateway) -> None:
    box = page.get_by_role("textbox", name="Message")
    await write(page, HELLO)
    await expect(page.locator(".reply:not(.live)")).to_have_count(1)
    await box.fill("half a thought")
    await page.get_by_role("button", name="New chat").click()
    await expect(box).to_have_value("")
    await box.fill("another one")
    await page.locator(".session", has_text=HELLO).click()
    await expect(box).to_have_value("half a thought")
    await page.reload()
    await expect(box).to_have_value("half a thought")
    await page.keyboard.press("Enter")
    await page.locator(".session", has_text="New conversation").click()
    await expect(box).to_have_value("another one")
    await page.locator(".session", has_text=HELLO).click()
    await expect(box).to_have_value("")
    assert [message.text for message in gateway.taken if message.text == "half a thought"] == ["half a thought"]
    await choose_setting(page, "Sign out")
    await page.get_by_text("Sign in to Gatehouse").wait_for()
    assert await page.evaluate("localStorage.getItem('gatehouse.drafts')") is None


async def test_a_long_answer_is_notified_while_the_page_is_hidden(page: Page, gateway: FakeGateway) -> None:
    await page.context.grant_permissions(["notifications"])
    await choose_setting(page, "Notify me of long answers")
    await expect(page.locator("#toast")).to_contain_text("You'll be notified")
    await page.evaluate("navigator.serviceWorker.ready.then(() => {})")
    gateway.hold.clear()
    await write(page, HELLO)
    await page.locator(".reply.live").wait_for()
    # Headless pages are never hidden, and the answer would have to take five seconds.
    await page.evaluate(
        """() => {
            Object.defineProperty(document, "hidden", { get: () => true });
            const now = Date.now.bind(Date);
            Date.now = () => now() + 10000;
        }"""
    )
    gateway.hold.set()
    shown: list[list[str]] = []

    async def is_shown() -> bool:
        shown[:] = await page.evaluate(SHOWN)
        return bool(shown)

    await until(is_shown)
    assert shown == [["Gatehouse", f"You said “{HELLO}”, and this is an answer of several words."]]


async def test_the_page_can_be_installed(page: Page) -> None:
    manifest = await (await page.request.get("/app.webmanifest")).json()
    assert manifest["start_url"] == "/"
    for each in manifest["icons"]:
        picture = await page.request.get(each["src"])
        assert picture.headers["content-type"].startswith(each["type"])
    client = await page.context.new_cdp_session(page)
    found: dict[str, Any] = await client.send("Page.getAppManifest")
    assert found["errors"] == []
    found = await client.send("Page.getInstallabilityErrors")
    assert [error for error in found["installabilityErrors"] if error["errorId"] != "in-incognito"] == []


async def test_text_that_is_typed_before_a_new_session_opens_stays_in_the_box(page: Page, gateway: FakeGateway) -> None:
    box = page.get_by_role("textbox", name="Message")
    await write(page, HELLO)
    await expect(page.locator(".reply:not(.live)")).to_have_count(1)
    gateway.refuses_for_now = True  # The page sends the command again later.
    await write(page, "/new")
    await box.fill("A fresh start")
    gateway.refuses_for_now = False
    await expect(page.locator(".session")).to_have_count(2)
    await expect(page.locator(".session[aria-current=true]")).not_to_contain_text(HELLO)
    await expect(box).to_have_value("A fresh start")
    await page.locator(".session", has_text=HELLO).click()
    await expect(box).to_have_value("")
    await page.locator(".session", has_text="New conversation").click()
    await expect(box).to_have_value("A fresh start")


@BOTH
async def test_the_shell_opens_while_the_gateway_is_away(browser: Browser, gateway: FakeGateway) -> None:
    context = await browser.new_context(base_url=gateway.url)
    page = await context.new_page()
    await page.goto(gateway.login_link())
    await page.get_by_text("Connected", exact=True).wait_for()
    await page.evaluate("navigator.serviceWorker.ready.then(() => {})")
    await holds(page, "caches.open('gatehouse-page').then((c) => c.match('/texts/de.js')).then(Boolean)")
    await gateway.stop()
    await page.reload()
    await expect(page.get_by_text("Can't reach Gatehouse")).to_be_visible()
    await shoot(page, "offline")
    kept = await page.evaluate(
        "caches.open('gatehouse-page').then((c) => c.keys()).then((all) => all.map((r) => r.url))"
    )
    assert not [url for url in kept if "/api/" in url or "/auth/" in url or "/files/" in url]
    await gateway.start()
    await page.get_by_text("Connected", exact=True).wait_for()
    await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    await context.close()

import pytest
from playwright.async_api import Browser, Page, expect

from gateway.contract import Outbound, OutboundKind
from tests.page.conftest import shoot
from tests.page.fake_gateway import FakeGateway
from tests.page.harness import BOTH, HELLO, holds, write
from tests.polling import until


@BOTH
async def test_an_answer_is_streamed_and_survives_a_reload(page: Page, gateway: FakeGateway) -> None:
    await shoot(page, "welcome")
    await page.evaluate(
        """() => {
            window.states = new Set();
            new MutationObserver(() => {
                const reply = document.querySelector('.reply .body');
                if (reply) window.states.add(reply.textContent.trim());
            }).observe(document.getElementById('log'), { childList: true, subtree: true, characterData: true });
        }"""
    )
    gateway.hold.clear()
    await write(page, HELLO)
    await expect(page.locator(".user .body")).to_have_text([HELLO])
    await page.locator(".reply.live").wait_for()
    gateway.hold.set()
    await expect(page.locator(".reply .body")).to_contain_text("this is an answer of several words.")
    states = sorted(await page.evaluate("[...window.states]"), key=len)
    assert len(states) >= 2, "the answer appeared only when it was complete"
    assert all(states[-1].startswith(state) for state in states)
    await page.reload()
    await expect(page.locator(".user .body")).to_have_text([HELLO])
    await expect(page.locator(".reply .body")).to_have_count(1)
    assert [inbound.text for inbound in gateway.taken] == [HELLO]


async def test_streaming_continues_after_a_reload(page: Page, gateway: FakeGateway) -> None:
    gateway.hold.clear()
    await write(page, HELLO)
    await page.locator(".reply.live").wait_for()
    await page.reload()
    await expect(page.locator(".user .body")).to_have_text([HELLO])
    gateway.hold.set()
    await expect(page.locator(".reply .body")).to_contain_text("this is an answer of several words.")
    await expect(page.locator(".reply.live")).to_have_count(0)
    await expect(page.locator(".item")).to_have_count(2)


async def test_a_new_chat_is_empty_and_the_old_one_can_be_resumed(page: Page) -> None:
    await write(page, HELLO)
    await expect(page.locator(".reply .body")).to_contain_text("several words.")
    await page.get_by_role("button", name="New chat").click()
    await expect(page.locator(".item")).to_have_count(0)
    await expect(page.get_by_text("What's on your mind?")).to_be_visible()
    await write(page, "Something else")
    await expect(page.locator(".user .body")).to_have_text(["Something else"])
    await expect(page.locator(".session")).to_have_count(2)
    await page.locator(".session", has_text=HELLO).click()
    await expect(page.locator(".user .body")).to_have_text([HELLO])
    await expect(page.locator(".session[aria-current=true]")).to_contain_text(HELLO)


async def test_a_message_right_after_a_typed_new_goes_to_the_new_session(page: Page) -> None:
    await write(page, HELLO)
    await expect(page.locator(".reply .body")).to_contain_text("several words.")
    await write(page, "/new")
    await write(page, "A fresh start")
    await expect(page.locator(".user .body").last).to_have_text("A fresh start")
    await expect(page.locator(".reply .body")).to_have_count(1)
    await expect(page.locator(".reply .body")).to_contain_text("“A fresh start”")
    await expect(page.locator(".log")).not_to_contain_text(HELLO)


async def test_an_answer_in_another_session_only_marks_that_session(page: Page, gateway: FakeGateway) -> None:
    gateway.hold.clear()
    await write(page, HELLO)
    await page.locator(".reply.live").wait_for()
    await page.get_by_role("button", name="New chat").click()
    await expect(page.locator(".item")).to_have_count(0)
    await expect(page.get_by_role("button", name="Stop the answer")).to_be_hidden()
    gateway.hold.set()
    await expect(page.locator(".session", has_text=HELLO).get_by_role("img", name="New answer")).to_be_visible()
    await expect(page.locator(".item")).to_have_count(0)
    await page.locator(".session", has_text=HELLO).click()
    await expect(page.locator(".reply .body")).to_contain_text("several words.")
    await expect(page.get_by_role("img", name="New answer")).to_have_count(0)


@BOTH
async def test_an_answer_can_be_stopped(page: Page, gateway: FakeGateway) -> None:
    gateway.hold.clear()
    await write(page, HELLO)
    await page.locator(".reply.live").wait_for()
    await page.get_by_role("button", name="Stop the answer").click()
    await expect(page.get_by_text("Stopped.")).to_be_visible()
    await expect(page.locator(".reply.live")).to_have_count(0)
    await expect(page.get_by_role("button", name="Stop the answer")).to_be_hidden()


@pytest.mark.parametrize("kind", ["tab", "browser"])
async def test_another_tab_or_browser_shows_the_same_chat(
    browser: Browser, page: Page, gateway: FakeGateway, kind: str
) -> None:
    other = await page.context.new_page() if kind == "tab" else await browser.new_page()
    await other.goto(gateway.url if kind == "tab" else gateway.login_link())
    await other.get_by_text("Connected", exact=True).wait_for()
    await write(page, HELLO)
    await expect(other.locator(".user .body")).to_have_text(HELLO)
    await expect(other.locator(".reply .body")).to_contain_text("several words.")
    await expect(other.locator(".item")).to_have_count(2)


async def test_commands_are_suggested_and_their_buttons_work(page: Page, gateway: FakeGateway) -> None:
    gateway.chats[0].title = "First"
    box = page.get_by_role("textbox", name="Message")
    await box.press_sequentially("/se")
    await expect(page.get_by_role("option")).to_have_count(2)
    await page.keyboard.press("ArrowDown")
    await shoot(page, "suggestions")
    await page.keyboard.press("Enter")
    await expect(box).to_have_value("/session list")
    await page.keyboard.press("Enter")
    await page.locator(".notice").get_by_role("button", name="First").click()
    await expect(page.get_by_text("Back in session 1.")).to_be_visible()


async def test_shift_enter_adds_a_line_instead_of_sending(page: Page, gateway: FakeGateway) -> None:
    box = page.get_by_role("textbox", name="Message")
    height = await box.evaluate("box => box.offsetHeight")
    await box.press_sequentially("one")
    await page.keyboard.press("Shift+Enter")
    await box.press_sequentially("two")
    assert await box.evaluate("box => box.offsetHeight") > height
    await page.keyboard.press("Enter")
    await expect(page.locator(".user .body")).to_have_text(["one\ntwo"])
    await until(lambda: gateway.taken, within=60)  # The page shows a message before it has arrived.
    assert [inbound.text for inbound in gateway.taken] == ["one\ntwo"]


async def test_the_view_follows_the_answer_unless_the_user_scrolled_up(page: Page, gateway: FakeGateway) -> None:
    gateway.answers["long"] = "word\n\n" * 80
    await write(page, "long")
    await expect(page.locator(".reply.live")).to_have_count(0)
    await expect(page.locator(".reply p")).to_have_count(80)
    is_at_end = "(e => e.scrollHeight - e.scrollTop - e.clientHeight < 2)(document.getElementById('scroller'))"
    await holds(page, is_at_end)
    await page.locator("#scroller").evaluate("e => e.scrollTop = 0")
    await expect(page.get_by_role("button", name="Go to the newest message")).to_be_visible()
    await gateway.channel.send(_more(gateway), key="more")
    await expect(page.locator(".reply")).to_have_count(2)
    assert not await page.evaluate(is_at_end)
    await page.get_by_role("button", name="Go to the newest message").click()
    await holds(page, is_at_end)


async def test_a_taller_window_that_shows_the_end_needs_no_button_to_the_end(page: Page, gateway: FakeGateway) -> None:
    gateway.answers["long"] = "word\n\n" * 20
    await page.set_viewport_size({"width": 1280, "height": 500})
    await write(page, "long")
    await expect(page.locator(".reply:not(.live) p")).to_have_count(20)
    await page.locator("#scroller").evaluate("e => e.scrollTop = 0")
    await expect(page.get_by_role("button", name="Go to the newest message")).to_be_visible()
    await page.set_viewport_size({"width": 1280, "height": 1600})
    await expect(page.get_by_role("button", name="Go to the newest message")).to_be_hidden()


def _more(gateway: FakeGateway) -> Outbound:
    return Outbound(address=gateway.taken[0].address, text="One more.", kind=OutboundKind.REPLY, session=1)


async def test_an_owner_without_a_model_is_told_how_to_connect_one(page: Page, gateway: FakeGateway) -> None:
    await expect(page.locator("#welcome")).to_be_visible()
    await expect(page.get_by_text("gatehouse setup")).to_be_hidden()
    gateway.has_model = False
    await page.reload()
    await expect(page.get_by_text("gatehouse setup")).to_be_visible()

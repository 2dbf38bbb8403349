from playwright.async_api import Page, expect

from gateway.contract import Address, Outbound, OutboundKind, PeerKind
from tests.page.conftest import shoot
from tests.page.fake_gateway import FakeGateway
from tests.page.harness import BOTH, HELLO, write
from tests.polling import until


@BOTH
async def test_a_message_typed_while_offline_arrives_once(page: Page, gateway: FakeGateway) -> None:
    await write(page, "Before")
    await expect(page.locator(".reply .body")).to_contain_text("several words.")
    await gateway.stop()
    await expect(page.get_by_text("Connecting…")).to_be_visible()
    await write(page, HELLO)
    await expect(page.locator(".user.pending .body")).to_have_text(HELLO)
    await shoot(page, "waiting")
    await gateway.start()
    await page.get_by_text("Connected", exact=True).wait_for()
    await expect(page.locator(".reply .body")).to_have_count(2)
    await expect(page.locator(".user .body")).to_have_count(2)
    assert [inbound.text for inbound in gateway.taken] == ["Before", HELLO]


async def test_an_unacknowledged_message_survives_a_reload(page: Page, gateway: FakeGateway) -> None:
    gateway.refuses_for_now = True
    await write(page, HELLO)
    await expect(page.locator(".user.pending .body")).to_have_text(HELLO)
    await page.reload()
    await expect(page.locator(".user.pending .body")).to_have_text(HELLO)
    gateway.refuses_for_now = False
    await expect(page.locator(".reply .body")).to_contain_text("several words.")
    await expect(page.locator(".user .body")).to_have_count(1)
    assert [inbound.text for inbound in gateway.taken] == [HELLO]


async def test_an_answer_finished_while_offline_is_complete_after_reconnecting(
    page: Page, gateway: FakeGateway
) -> None:
    gateway.hold.clear()
    await write(page, HELLO)
    await page.locator(".reply.live").wait_for()
    await gateway.stop()
    await expect(page.get_by_text("Connecting…")).to_be_visible()
    gateway.hold.set()
    await gateway.idle()
    await gateway.start()
    await expect(page.locator(".reply:not(.live) .body")).to_contain_text("several words.")
    await expect(page.locator(".item")).to_have_count(2)
    await expect(page.get_by_role("button", name="Stop the answer")).to_be_hidden()


async def test_messages_keep_their_order_when_the_first_is_retried(page: Page, gateway: FakeGateway) -> None:
    gateway.refuses_for_now = True
    await write(page, "first")
    await write(page, "second")
    await expect(page.locator(".user.pending")).to_have_count(2)
    gateway.refuses_for_now = False
    await expect(page.locator(".reply:not(.live)")).to_have_count(2)
    assert [inbound.text for inbound in gateway.taken] == ["first", "second"]


async def test_a_resumed_answer_stays_above_the_next_question(page: Page, gateway: FakeGateway) -> None:
    gateway.answers = {"one": "The first answer of the two.", "two": "The second answer of the two."}
    gateway.hold.clear()
    await write(page, "one")
    await page.locator(".reply.live").wait_for()
    await write(page, "two")
    await expect(page.locator(".user.taken")).to_have_count(2)
    await gateway.stop()
    await expect(page.get_by_text("Connecting…")).to_be_visible()
    await gateway.start()
    await page.get_by_text("Connected", exact=True).wait_for()
    gateway.hold.set()
    in_order = ["one", gateway.answers["one"], "two", gateway.answers["two"]]
    await expect(page.locator(".item:not(.live) .body")).to_have_text(in_order)
    await page.reload()
    await expect(page.locator(".item .body")).to_have_text(in_order)


async def test_a_connection_that_breaks_at_each_history_is_retried_with_growing_pauses(
    page: Page, gateway: FakeGateway
) -> None:
    await page.evaluate(
        """() => {
            window.pauses = [];
            const original = window.setTimeout;
            window.setTimeout = (work, wait, ...rest) => {
                if (work.name === "reconnect") window.pauses.push(wait);
                return original(work, wait, ...rest);
            };
        }"""
    )
    gateway.breaks_history = True
    await gateway.stop()
    await gateway.start()
    pauses: list[float] = []

    async def has_retried() -> bool:
        pauses[:] = await page.evaluate("window.pauses")
        return len(pauses) >= 5

    await until(has_retried)
    # The jitter is a quarter, so pauses that double with each attempt always grow.
    assert pauses[:5] == sorted(pauses[:5])
    gateway.breaks_history = False
    await page.get_by_text("Connected", exact=True).wait_for()


async def test_an_answer_to_another_channel_stays_after_reconnecting(page: Page, gateway: FakeGateway) -> None:
    """No transcript of the chat has it: a webhook was answered here. It can't be tried again here either."""
    owner = Address(channel="web", kind=PeerKind.DIRECT, peer="owner")
    aside = Outbound(address=owner, text="[webhook ci] It **failed**.", kind=OutboundKind.REPLY, is_failure=True)
    await write(page, "Before")
    await expect(page.locator(".reply .body")).to_contain_text("several words.")
    await gateway.channel.send(aside, key="k1")
    await expect(page.locator(".reply strong")).to_have_text("failed")
    await expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    await gateway.stop()
    await expect(page.get_by_text("Connecting…")).to_be_visible()
    await gateway.start()
    await page.get_by_text("Connected", exact=True).wait_for()
    await expect(page.locator(".reply .body")).to_have_count(2)
    await expect(page.locator(".reply strong")).to_have_text("failed")

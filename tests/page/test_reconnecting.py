from playwright.async_api import Page, expect

from tests.page.conftest import shoot
from tests.page.harness import HELLO, write
from tests.page.house import House


async def test_what_is_typed_while_the_server_is_away_arrives_once(page: Page, house: House) -> None:
    await write(page, "Before")
    await expect(page.locator(".reply .body")).to_contain_text("several words.")
    await house.stop()
    await expect(page.get_by_text("Connecting…")).to_be_visible()
    await write(page, HELLO)
    await expect(page.locator(".user.pending .body")).to_have_text(HELLO)
    await shoot(page, "waiting")
    await house.start()
    await page.get_by_text("Connected", exact=True).wait_for()
    await expect(page.locator(".reply .body")).to_have_count(2)
    await expect(page.locator(".user .body")).to_have_count(2)
    assert [inbound.text for inbound in house.taken] == ["Before", HELLO]


async def test_what_was_not_acknowledged_survives_a_reload(page: Page, house: House) -> None:
    house.is_busy_disk = True
    await write(page, HELLO)
    await expect(page.locator(".user.pending .body")).to_have_text(HELLO)
    await page.reload()
    await expect(page.locator(".user.pending .body")).to_have_text(HELLO)
    house.is_busy_disk = False
    await expect(page.locator(".reply .body")).to_contain_text("several words.")
    await expect(page.locator(".user .body")).to_have_count(1)
    assert [inbound.text for inbound in house.taken] == [HELLO]


async def test_an_answer_finished_while_away_is_whole_on_return(page: Page, house: House) -> None:
    house.hold.clear()
    await write(page, HELLO)
    await page.locator(".reply.live").wait_for()
    await house.stop()
    await expect(page.get_by_text("Connecting…")).to_be_visible()
    house.hold.set()
    await house.idle()
    await house.start()
    await expect(page.locator(".reply:not(.live) .body")).to_contain_text("several words.")
    await expect(page.locator(".item")).to_have_count(2)
    await expect(page.get_by_role("button", name="Stop the answer")).to_be_hidden()


async def test_messages_keep_their_order_when_the_first_is_not_taken_at_once(page: Page, house: House) -> None:
    house.is_busy_disk = True
    await write(page, "first")
    await write(page, "second")
    await expect(page.locator(".user.pending")).to_have_count(2)
    house.is_busy_disk = False
    await expect(page.locator(".reply:not(.live)")).to_have_count(2)
    assert [inbound.text for inbound in house.taken] == ["first", "second"]

"""The loop with its pauses in the test's hands; a refused token is what ends it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from channels.telegram.api import BotApi
from channels.telegram.breath import Breath
from channels.telegram.polling import ALBUM_PAUSE, Poller
from channels.telegram.taking import Taker
from channels.telegram.wire import BotIdentity
from config import Secret
from gateway.contract import Address, Inbound, Verdict
from gateway.errors import AuthRejected, Transient
from tests.channels.telegram.bot_api import ADA, BOB, CONFLICT, PATIENCE, TOKEN, FakeBotApi, Json, bot_api, refusal
from tests.channels.telegram.running import Beats

REVOKED = refusal(401, "Unauthorized")


@pytest.fixture
async def api() -> AsyncIterator[FakeBotApi]:
    async with bot_api() as api:
        yield api


async def identify() -> BotIdentity:
    return BotIdentity(channel="telegram", account="default", id=123456, username="gate_bot")


async def relocate(_old: Address, _new: Address) -> None:
    pytest.fail("nothing has moved")


async def poll(
    api: FakeBotApi, beats: Beats, sleep: Callable[[float], Awaitable[None]], taken: list[Inbound] | None = None
) -> list[Inbound]:
    """Poll until the token is revoked; return what was taken, which is in `taken` as soon as it is."""
    taken = [] if taken is None else taken

    async def deliver(inbound: Inbound) -> Verdict:
        taken.append(inbound)
        return Verdict.ACCEPTED

    async with asyncio.timeout(PATIENCE), BotApi(Secret(TOKEN), api.url) as bot:
        with pytest.raises(AuthRejected):
            async with Taker(bot, deliver, relocate) as taker:
                await Poller(bot, identify, beats, longest=50, breath=Breath(), sleep=sleep).run(taker)
    return taken


def picture(name: str, caption: str) -> Json:
    photo = {"file_id": name, "file_unique_id": "U", "width": 1, "height": 1}
    return {"media_group_id": "A", "photo": [photo], "caption": caption}


async def test_pauses_grow_while_the_trouble_lasts_and_start_anew_after_it(api: FakeBotApi) -> None:
    beats, pauses = Beats(), list[float]()

    async def sleep(pause: float) -> None:
        pauses.append(pause)

    fine = (200, {"ok": True, "result": []})
    asked = refusal(429, "Too Many Requests", retry_after=17)
    api.scripted["getUpdates"] += [*[CONFLICT] * 6, asked, fine, CONFLICT, REVOKED]
    await poll(api, beats, sleep)
    assert pauses == [1, 2, 5, 10, 30, 30, 17, 1]
    assert beats.heard.count("up") == 1
    assert "Another program" in beats.heard[0]


async def test_an_album_is_one_message_though_its_parts_come_one_by_one(api: FakeBotApi) -> None:
    to_come = [picture("two", ""), picture("three", "at these")]

    async def sleep(pause: float) -> None:
        assert pause == ALBUM_PAUSE
        if to_come:
            await api.say("", **to_come.pop(0))
        else:
            await api.say("and?")

    await api.say("", **picture("one", "look"))
    polling = asyncio.create_task(poll(api, Beats(), sleep), name="poll")
    await api.acknowledged()
    api.scripted["getUpdates"].append(REVOKED)
    await api.say("the last")
    album, *others = await polling
    assert [file.ref for file in album.attachments] == ["one", "two", "three"]
    assert album.text == "look\nat these"
    assert [other.text for other in others] == ["and?", "the last"]


async def test_albums_of_two_people_at_once_are_two_messages(api: FakeBotApi) -> None:
    """Telegram numbers what comes in from all chats as it comes, so the one's pictures lie between the other's."""
    to_come = [("three", ADA), ("drei", BOB)]

    async def sleep(_: float) -> None:
        while to_come:
            name, sender = to_come.pop(0)
            await api.say("", sender=sender, **picture(name, ""))
            await api.say("hello", sender={**BOB, "id": 78 + len(to_come)})

    for name, sender in (("one", ADA), ("eins", BOB), ("two", ADA), ("zwei", BOB)):
        await api.say("", sender=sender, **picture(name, ""))
    await api.say("hi", sender={**BOB, "id": 90})
    polling = asyncio.create_task(poll(api, Beats(), sleep), name="poll")
    await api.acknowledged()
    api.scripted["getUpdates"].append(REVOKED)
    await api.say("the last")
    taken = await polling
    albums = {each.address.peer: [file.ref for file in each.attachments] for each in taken if each.attachments}
    assert albums == {"42": ["one", "two", "three"], "77": ["eins", "zwei", "drei"]}
    assert len(taken) == 6, "something was taken in pieces, or twice"


async def test_what_others_wrote_does_not_wait_for_an_album(api: FakeBotApi) -> None:
    """However many albums come one behind the other, each message is taken with the next look."""
    heard: list[str] = []
    waiting = ["", "second", "third"]

    async def sleep(_: float) -> None:
        heard.append(waiting.pop(0))
        assert [each.text for each in taken if not each.attachments] == heard[1:], "it has waited for an album"
        if waiting:
            await api.say(waiting[0], sender=BOB)
            await api.say("", **{**picture("one", "look"), "media_group_id": f"A{len(waiting)}"})

    taken: list[Inbound] = []
    await api.say("", **picture("one", "look"))
    polling = asyncio.create_task(poll(api, Beats(), sleep, taken), name="poll")
    await api.acknowledged()
    api.scripted["getUpdates"].append(REVOKED)
    await api.say("the last")
    await polling
    assert len(taken) == 6


async def test_an_album_that_is_interrupted_is_not_waited_for(api: FakeBotApi) -> None:
    async def sleep(_: float) -> None:
        pytest.fail("there is nothing to wait for")

    await api.say("", **picture("one", "look"))
    await api.say("and?")
    polling = asyncio.create_task(poll(api, Beats(), sleep), name="poll")
    await api.acknowledged()
    api.scripted["getUpdates"].append(REVOKED)
    await api.say("the last")
    assert [taken.text for taken in (await polling)[1:]] == ["and?", "the last"]


async def test_the_chats_of_one_answer_do_not_wait_for_each_other(api: FakeBotApi) -> None:
    """Ada's first is held up until all that Bob wrote behind it has been taken; her second waits for it."""
    bob_is_done = asyncio.Event()
    taken: list[str] = []

    async def deliver(inbound: Inbound) -> Verdict:
        if inbound.text == "first":
            await bob_is_done.wait()
        taken.append(inbound.text)
        if inbound.text == "fourth":
            bob_is_done.set()
        return Verdict.ACCEPTED

    for text, sender in (("first", ADA), ("second", ADA), ("third", BOB), ("fourth", BOB)):
        await api.say(text, sender=sender)
    async with asyncio.timeout(PATIENCE), BotApi(Secret(TOKEN), api.url) as bot, Taker(bot, deliver, relocate) as taker:
        left = await taker.take_all(await bot.updates(None, wait=0, slack=5), await identify())
    assert taken == ["third", "fourth", "first", "second"]
    assert left == (set(), None)


async def test_the_offset_stops_at_the_first_that_could_not_be_taken(api: FakeBotApi) -> None:
    """What others wrote behind it is taken, and comes again; what the same person wrote behind it is not."""
    trouble = Transient("the disk is full")
    taken: list[str] = []

    async def deliver(inbound: Inbound) -> Verdict:
        if inbound.text == "second":
            raise trouble
        taken.append(inbound.text)
        return Verdict.ACCEPTED

    said = [("first", BOB), ("second", ADA), ("third", ADA), ("fourth", BOB)]
    numbers = [(await api.say(text, sender=sender))["update_id"] for text, sender in said]
    async with asyncio.timeout(PATIENCE), BotApi(Secret(TOKEN), api.url) as bot, Taker(bot, deliver, relocate) as taker:
        left = await taker.take_all(await bot.updates(None, wait=0, slack=5), await identify())
    assert taken == ["first", "fourth"]
    assert left == ({numbers[1], numbers[2]}, trouble)


async def test_what_was_not_taken_is_asked_for_again(api: FakeBotApi) -> None:
    troubles = [Transient("the disk is full", retry_after=0)]
    taken: list[str] = []

    async def deliver(inbound: Inbound) -> Verdict:
        if inbound.text == "first" and troubles:
            raise troubles.pop()
        taken.append(inbound.text)
        return Verdict.ACCEPTED

    async def sleep(_: float) -> None:
        assert [update["message"]["text"] for update in api.pending] == ["first", "second"], "it was forgotten"

    await api.say("first")
    await api.say("second", sender=BOB)
    async with (
        asyncio.timeout(PATIENCE),
        BotApi(Secret(TOKEN), api.url) as bot,
        asyncio.TaskGroup() as tasks,
        Taker(bot, deliver, relocate) as taker,
    ):
        poller = Poller(bot, identify, Beats(), longest=50, breath=Breath(), sleep=sleep)
        polling = tasks.create_task(poller.run(taker), name="poll")
        await api.acknowledged()
        polling.cancel()
    assert taken == ["second", "first"], "what was taken is not taken again"

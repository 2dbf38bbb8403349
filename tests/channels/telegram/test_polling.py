"""The polling loop. The tests control its pauses, and end it by a rejected token."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from channels.telegram.api import BotApi
from channels.telegram.polling import ALBUM_PAUSE, Poller
from channels.telegram.updates import UpdateHandler
from config import ChannelSettings, Secret
from gateway.contract import Inbound, Verdict
from gateway.errors import AuthRejected, NotAccepted
from tests.channels.telegram.bot_api import (
    ADA,
    BOB,
    CONFLICT,
    DROP,
    TEST_TIMEOUT,
    TOKEN,
    FakeBotApi,
    Json,
    refusal,
    text_update,
)
from tests.channels.telegram.harness import Core, PulseRecorder, channel_context, opened, running

REVOKED = refusal(401, "Unauthorized")
CONTEXT = channel_context(ChannelSettings())


async def poll(
    api: FakeBotApi,
    pulse: PulseRecorder,
    sleep: Callable[[float], Awaitable[None]],
    delivered: list[Inbound] | None = None,
    confirm: Callable[[], None] = lambda: None,
) -> list[Inbound]:
    """Poll until the token is revoked. Returns the delivered messages, which are added to `delivered` as they come."""
    delivered = [] if delivered is None else delivered

    async def deliver(inbound: Inbound) -> Verdict:
        delivered.append(inbound)
        return Verdict.ACCEPTED

    async with asyncio.timeout(TEST_TIMEOUT), BotApi(Secret(TOKEN), api.url) as bot:
        with pytest.raises(AuthRejected):
            async with UpdateHandler(bot, CONTEXT, deliver) as handler:
                await Poller(bot, handler, pulse, max_wait=50, sleep=sleep, confirm=confirm).run()
    return delivered


def picture(name: str, caption: str) -> Json:
    photo = {"file_id": name, "file_unique_id": "U", "width": 1, "height": 1}
    return {"media_group_id": "A", "photo": [photo], "caption": caption}


async def test_retry_delays_grow_during_an_outage_and_restart_after_it(api: FakeBotApi) -> None:
    pulse, delays = PulseRecorder(), list[float]()

    async def sleep(delay: float) -> None:
        delays.append(delay)

    fine = (200, {"ok": True, "result": []})
    rate_limited = refusal(429, "Too Many Requests", retry_after=17)
    api.scripted["getUpdates"] += [*[CONFLICT] * 6, rate_limited, fine, CONFLICT, REVOKED]
    await poll(api, pulse, sleep)
    assert delays == [1, 2, 5, 10, 30, 30, 17, 1]
    assert pulse.states.count("up") == 1
    assert "Another program" in pulse.states[0]


async def test_no_updates_are_requested_while_another_node_may_poll(api: FakeBotApi) -> None:
    outcomes = iter([None, NotAccepted("Another node may receive."), None])
    requests: list[int] = []

    def confirm() -> None:
        if (refusal := next(outcomes)) is not None:
            raise refusal

    async def sleep(_: float) -> None:
        requests.append(len(api.calls_of("getUpdates")))

    fine = (200, {"ok": True, "result": []})
    api.scripted["getUpdates"] += [fine, REVOKED]
    pulse = PulseRecorder()
    await poll(api, pulse, sleep, confirm=confirm)
    assert requests == [1]
    assert pulse.states == ["up"], "Telegram itself has not failed"


async def test_an_album_is_one_message_even_if_its_parts_arrive_one_by_one(api: FakeBotApi) -> None:
    to_come = [picture("two", ""), picture("three", "at these")]

    async def sleep(delay: float) -> None:
        assert delay == ALBUM_PAUSE
        if to_come:
            await api.say("", **to_come.pop(0))
        else:
            await api.say("and?")

    await api.say("", **picture("one", "look"))
    polling = asyncio.create_task(poll(api, PulseRecorder(), sleep), name="poll")
    await api.acknowledged()
    api.scripted["getUpdates"].append(REVOKED)
    await api.say("the last")
    album, *others = await polling
    assert [file.ref for file in album.attachments] == ["one", "two", "three"]
    assert album.text == "look\nat these"
    assert [other.text for other in others] == ["and?", "the last"]


async def test_interleaved_albums_of_two_people_are_two_messages(api: FakeBotApi) -> None:
    """Telegram numbers the updates of all chats in one sequence, so the parts of the two albums alternate."""
    to_come = [("three", ADA), ("drei", BOB)]

    async def sleep(_: float) -> None:
        while to_come:
            name, sender = to_come.pop(0)
            await api.say("", sender=sender, **picture(name, ""))
            await api.say("hello", sender={**BOB, "id": 78 + len(to_come)})

    for name, sender in (("one", ADA), ("eins", BOB), ("two", ADA), ("zwei", BOB)):
        await api.say("", sender=sender, **picture(name, ""))
    await api.say("hi", sender={**BOB, "id": 90})
    polling = asyncio.create_task(poll(api, PulseRecorder(), sleep), name="poll")
    await api.acknowledged()
    api.scripted["getUpdates"].append(REVOKED)
    await api.say("the last")
    delivered = await polling
    albums = {each.address.peer: [file.ref for file in each.attachments] for each in delivered if each.attachments}
    assert albums == {"42": ["one", "two", "three"], "77": ["eins", "zwei", "drei"]}
    assert len(delivered) == 6, "an album was delivered in parts, or a message twice"


async def test_messages_of_other_chats_do_not_wait_for_an_album(api: FakeBotApi) -> None:
    """Even if one album follows the other, each message is delivered by the next poll."""
    expected: list[str] = []
    waiting = ["", "second", "third"]

    async def sleep(_: float) -> None:
        expected.append(waiting.pop(0))
        assert [each.text for each in delivered if not each.attachments] == expected[1:], "it has waited for an album"
        if waiting:
            await api.say(waiting[0], sender=BOB)
            await api.say("", **{**picture("one", "look"), "media_group_id": f"A{len(waiting)}"})

    delivered: list[Inbound] = []
    await api.say("", **picture("one", "look"))
    polling = asyncio.create_task(poll(api, PulseRecorder(), sleep, delivered), name="poll")
    await api.acknowledged()
    api.scripted["getUpdates"].append(REVOKED)
    await api.say("the last")
    await polling
    assert len(delivered) == 6


async def test_an_album_followed_by_another_message_is_delivered_at_once(api: FakeBotApi) -> None:
    async def sleep(_: float) -> None:
        pytest.fail("the album was already complete")

    await api.say("", **picture("one", "look"))
    await api.say("and?")
    polling = asyncio.create_task(poll(api, PulseRecorder(), sleep), name="poll")
    await api.acknowledged()
    api.scripted["getUpdates"].append(REVOKED)
    await api.say("the last")
    assert [each.text for each in (await polling)[1:]] == ["and?", "the last"]


async def test_an_update_that_was_not_accepted_is_fetched_again(api: FakeBotApi) -> None:
    troubles = [NotAccepted("the disk is full", retry_after=0)]
    delivered: list[str] = []

    async def deliver(inbound: Inbound) -> Verdict:
        if inbound.text == "first" and troubles:
            raise troubles.pop()
        delivered.append(inbound.text)
        return Verdict.ACCEPTED

    async def sleep(_: float) -> None:
        assert [update["message"]["text"] for update in api.pending] == ["first", "second"], "it was acknowledged"

    await api.say("first")
    await api.say("second", sender=BOB)
    async with (
        asyncio.timeout(TEST_TIMEOUT),
        BotApi(Secret(TOKEN), api.url) as bot,
        asyncio.TaskGroup() as tasks,
        UpdateHandler(bot, CONTEXT, deliver) as handler,
    ):
        poller = Poller(bot, handler, PulseRecorder(), max_wait=50, sleep=sleep)
        polling = tasks.create_task(poller.run(), name="poll")
        await api.acknowledged()
        polling.cancel()
    assert delivered == ["second", "first"], "an update was delivered twice"


@pytest.mark.usefixtures("channel")
async def test_updates_are_acknowledged_only_after_the_core_accepted_them(
    api: FakeBotApi, core: Core, pulse: PulseRecorder
) -> None:
    core.errors = [NotAccepted("the disk is full", retry_after=0.01)]
    await api.say("one")
    await api.say("two")
    assert [(await core.next_message()).text for _ in range(2)] == ["one", "two"]
    await api.acknowledged()
    assert set(pulse.states) == {"up"}, "Telegram itself has not failed"


async def test_updates_delivered_before_an_error_are_acknowledged(api: FakeBotApi, pulse: PulseRecorder) -> None:
    delivered: list[str] = []

    async def deliver(inbound: Inbound) -> Verdict:
        if inbound.text == "two":
            raise NotAccepted("shutting down", retry_after=3600)
        delivered.append(inbound.text)
        return Verdict.ACCEPTED

    await api.say("one")
    await api.say("two")
    async with asyncio.timeout(TEST_TIMEOUT), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(opened(api, pulse).run(deliver), name="channel")
        await api.acknowledged(left=1)
        task.cancel()
    assert delivered == ["one"]
    assert set(pulse.states) <= {"up"}, "Telegram itself has not failed"
    assert [update["message"]["text"] for update in api.pending] == ["two"]


@pytest.mark.usefixtures("channel")
async def test_an_unparsable_update_does_not_block_others(api: FakeBotApi, core: Core) -> None:
    async with api._changed:  # noqa: SLF001 - both in one answer.
        api.pending.append({"update_id": 1, "message": {"message_id": "of a kind to come"}})
    await api.say("hello")
    assert (await core.next_message()).text == "hello"
    await api.acknowledged()


async def test_an_update_whose_id_cannot_be_read_is_reported_and_does_not_block_others(
    api: FakeBotApi, core: Core, pulse: PulseRecorder
) -> None:
    odd = {"update_id": "x", "message": {}}
    api.scripted["getUpdates"].append((200, {"ok": True, "result": [odd, text_update("fine", 2)]}))
    with capture_logs() as logs:
        async with running(opened(api, pulse), core.deliver, pulse):
            assert (await core.next_message()).text == "fine"
    assert {"event": "updates_without_id_skipped", "count": 1, "log_level": "warning"} in logs


TOO_DEEP = 20_000


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (r'"half a \ud83d pair"', "half a ? pair"),
        ('"\udcff is not UTF-8"', "\ufffd is not UTF-8"),
        ('"a \x01 control"', "a \x01 control"),
        (f'"odd [", "rich_message": {{"blocks": {"[" * TOO_DEEP}{"]" * TOO_DEEP}}}', "odd ["),
    ],
    ids=["surrogate", "encoding", "control", "depth"],
)
async def test_an_odd_message_does_not_block_others(
    api: FakeBotApi, core: Core, pulse: PulseRecorder, body: str, text: str
) -> None:
    odd = json.dumps(text_update("odd", 1)).replace('"odd"', body)
    api.scripted["getUpdates"].append((200, f'{{"ok": true, "result": [{odd}, {json.dumps(text_update("fine", 2))}]}}'))
    async with running(opened(api, pulse), core.deliver, pulse):
        assert [(await core.next_message()).text for _ in range(2)] == [text, "fine"]
    assert len(pulse.states) == 1, "the poll has failed"


@pytest.mark.usefixtures("channel")
async def test_a_lower_update_id_after_a_quiet_week_is_delivered(api: FakeBotApi, core: Core) -> None:
    await api.say("before")
    await core.next_message()
    await api.acknowledged()
    api._next_update = 7  # noqa: SLF001 - Telegram may start anywhere.
    await api.say("after")
    assert (await core.next_message()).text == "after"


@pytest.mark.parametrize(
    "answer",
    [
        DROP,
        refusal(502, "Bad Gateway"),
        refusal(429, "Too Many Requests", retry_after=1),
        CONFLICT,
        refusal(400, "Bad Request: an unexpected reason"),
        (200, "no json"),
    ],
)
async def test_errors_while_polling_are_reported_and_retried(
    api: FakeBotApi, core: Core, pulse: PulseRecorder, answer: tuple[int, object]
) -> None:
    api.scripted["getUpdates"].append(answer)
    await api.say("hello")
    async with running(opened(api, pulse), core.deliver, pulse):
        assert (await core.next_message()).text == "hello"
    assert len(pulse.states) == 2
    assert not any(TOKEN in reason for reason in pulse.states)


async def test_a_leftover_webhook_is_deleted_without_losing_pending_updates(
    api: FakeBotApi, core: Core, pulse: PulseRecorder
) -> None:
    api.webhook = "https://elsewhere.example/hook"
    await api.say("hello")
    async with running(opened(api, pulse), core.deliver, pulse):
        assert (await core.next_message()).text == "hello"
    assert (await api.called("deleteWebhook")).fields["drop_pending_updates"] == "false"


@pytest.mark.parametrize("answer", [refusal(401, "Unauthorized"), refusal(404, "Not Found")])
async def test_a_rejected_token_ends_the_channel(
    api: FakeBotApi, core: Core, pulse: PulseRecorder, answer: tuple[int, object]
) -> None:
    api.scripted["getMe"].append(answer)
    async with asyncio.timeout(TEST_TIMEOUT):
        with pytest.raises(AuthRejected, match="BotFather"):
            await opened(api, pulse).run(core.deliver)


async def test_a_token_revoked_while_polling_ends_the_channel(
    api: FakeBotApi, core: Core, pulse: PulseRecorder
) -> None:
    api.scripted["getUpdates"].append(refusal(401, "Unauthorized"))
    async with asyncio.timeout(TEST_TIMEOUT):
        with pytest.raises(AuthRejected):
            await opened(api, pulse).run(core.deliver)


async def test_a_channel_with_a_revoked_token_does_not_wait_for_the_menu(
    api: FakeBotApi, core: Core, pulse: PulseRecorder
) -> None:
    api.scripted["setMyCommands"].append(refusal(429, "Too Many Requests: retry after 999", retry_after=999))
    api.scripted["getUpdates"].append(refusal(401, "Unauthorized"))
    async with asyncio.timeout(TEST_TIMEOUT):
        with pytest.raises(AuthRejected):
            await opened(api, pulse).run(core.deliver)

"""How a batch of updates is handled: order, concurrency, and updates that the core does not accept."""

import asyncio

import pytest

from channels.telegram.api import BotApi
from channels.telegram.updates import UpdateHandler
from config import ChannelSettings, Secret
from gateway.contract import Deliver, Inbound, Verdict
from gateway.errors import ChannelError, NotAccepted
from tests.channels.telegram.bot_api import ADA, BOB, GROUP, TEST_TIMEOUT, TOKEN, FakeBotApi, refusal
from tests.channels.telegram.harness import THERE, Core, PulseRecorder, channel_context, opened, running


async def handle_all(api: FakeBotApi, deliver: Deliver) -> tuple[set[int], ChannelError | None]:
    """Handle all pending updates. Returns the ids of those that were not handled, and the error."""
    async with (
        asyncio.timeout(TEST_TIMEOUT),
        BotApi(Secret(TOKEN), api.url) as bot,
        UpdateHandler(bot, channel_context(ChannelSettings()), deliver) as handler,
    ):
        return await handler.handle_all(await bot.get_updates(None, wait=0, slack=5))


async def test_chats_in_one_batch_do_not_wait_for_each_other(api: FakeBotApi) -> None:
    """Ada's first message is blocked until all of Bob's are delivered. Her second one waits for her first."""
    bob_is_done = asyncio.Event()
    delivered: list[str] = []

    async def deliver(inbound: Inbound) -> Verdict:
        if inbound.text == "first":
            await bob_is_done.wait()
        delivered.append(inbound.text)
        if inbound.text == "fourth":
            bob_is_done.set()
        return Verdict.ACCEPTED

    for text, sender in (("first", ADA), ("second", ADA), ("third", BOB), ("fourth", BOB)):
        await api.say(text, sender=sender)
    left = await handle_all(api, deliver)
    assert delivered == ["third", "fourth", "first", "second"]
    assert left == (set(), None)


async def test_an_error_stops_its_own_chat_only(api: FakeBotApi) -> None:
    trouble = NotAccepted("the disk is full")
    delivered: list[str] = []

    async def deliver(inbound: Inbound) -> Verdict:
        if inbound.text == "second":
            raise trouble
        delivered.append(inbound.text)
        return Verdict.ACCEPTED

    said = [("first", BOB), ("second", ADA), ("third", ADA), ("fourth", BOB)]
    numbers = [(await api.say(text, sender=sender))["update_id"] for text, sender in said]
    left = await handle_all(api, deliver)
    assert delivered == ["first", "fourth"]
    assert left == ({numbers[1], numbers[2]}, trouble)


@pytest.mark.usefixtures("channel")
async def test_pressing_a_button_delivers_its_command(api: FakeBotApi, core: Core) -> None:
    list_message = {"message_id": 5, "date": 1, "chat": GROUP, "is_topic_message": True, "message_thread_id": 7}
    await api.press(list_message, "/session resume 2", sender=BOB)
    inbound = await core.next_message()
    assert (inbound.text, inbound.sender.id, inbound.address) == ("/session resume 2", "77", THERE)
    assert (await api.called("answerCallbackQuery")).fields["callback_query_id"] in inbound.event_id


@pytest.mark.usefixtures("channel")
async def test_the_command_menu_is_registered(api: FakeBotApi) -> None:
    assert (await api.called("setMyCommands")).json("commands") == [
        {"command": "new", "description": "Start a new conversation"}
    ]


async def test_registering_the_menu_is_retried(api: FakeBotApi, core: Core, pulse: PulseRecorder) -> None:
    api.scripted["setMyCommands"].append(refusal(429, "Too Many Requests: retry after 1", retry_after=1))
    async with running(opened(api, pulse), core.deliver, pulse):
        await api.called("setMyCommands", times=2)


async def test_messages_do_not_wait_for_the_menu(api: FakeBotApi, core: Core, pulse: PulseRecorder) -> None:
    api.held.add("setMyCommands")
    async with running(opened(api, pulse), core.deliver, pulse):
        await api.called("setMyCommands")
        await api.say("hello")
        assert (await core.next_message()).text == "hello"


async def test_a_rejected_menu_does_not_stop_the_channel(api: FakeBotApi, core: Core, pulse: PulseRecorder) -> None:
    api.scripted["setMyCommands"].append(refusal(400, "Bad Request: BOT_COMMAND_INVALID"))
    async with running(opened(api, pulse), core.deliver, pulse):
        await api.say("hello")
        assert (await core.next_message()).text == "hello"


@pytest.mark.usefixtures("channel")
async def test_bots_and_service_messages_are_skipped(api: FakeBotApi, core: Core) -> None:
    await api.say("I am a bot too", sender={**BOB, "is_bot": True})
    await api.say("", new_chat_title="a service message")
    await api.say("hello", sender=ADA)
    assert (await core.next_message()).text == "hello"

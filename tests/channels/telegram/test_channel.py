"""The channel under the real aiogram, against a server that speaks the Bot API."""

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator
from weakref import ref

import pytest
from aiogram.methods import Response
from aiogram.types import Message, Update
from msgspec.structs import replace

from channels.telegram import open_channel
from config import ChannelSettings, Secret
from gateway.contract import (
    Address,
    Button,
    Channel,
    ChannelContext,
    Drafts,
    Edits,
    Inbound,
    OffersButtons,
    Outbound,
    OutboundKind,
    PeerKind,
    Reacts,
    Receipt,
    ShowsTyping,
    Verdict,
)
from gateway.errors import AuthRejected, CannotStart, Transient, Undeliverable
from gateway.notebook import LooseLeaf
from gateway.testing import StubBrowser
from tests.channels.telegram.bot_api import (
    ADA,
    BOB,
    CONFLICT,
    DROP,
    GROUP,
    PATIENCE,
    TOKEN,
    UNPARSABLE,
    FakeBotApi,
    Json,
    bot_api,
    refusal,
)
from tests.channels.telegram.running import Beats, Core, opened, running

HERE = Address(channel="telegram", kind=PeerKind.DIRECT, peer="42")
THERE = Address(channel="telegram", kind=PeerKind.GROUP, peer="-1001", thread="7")
REPLY = Outbound(address=HERE, text="**good** day", kind=OutboundKind.REPLY, reply_to="9")


@pytest.fixture
async def api() -> AsyncIterator[FakeBotApi]:
    async with bot_api() as api:
        yield api


@pytest.fixture
async def channel(api: FakeBotApi, core: Core, beats: Beats) -> AsyncIterator[Channel]:
    channel = opened(api, beats)
    async with running(channel, core.deliver, beats):
        yield channel


def test_opening_it_does_not_import_aiogram() -> None:
    code = "import sys, channels.telegram; print([name for name in sys.modules if name.startswith('aiogram')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("token", [None, Secret("no token"), Secret("123:"), Secret("123:a b")])
def test_what_is_no_token_is_a_mistake_in_the_config(token: Secret | None, beats: Beats) -> None:
    context = ChannelContext(
        name="telegram",
        account="work",
        settings=ChannelSettings(token=token),
        browser=StubBrowser(),
        notebook=LooseLeaf(),
        pulse=beats,
    )
    with pytest.raises(CannotStart, match=r"channels\.telegram\.accounts\.work\.token"):
        open_channel(context)


async def test_text_goes_both_ways(channel: Channel, api: FakeBotApi, core: Core) -> None:
    await api.say("hello")
    taken = await core.heard()
    assert (taken.text, taken.address, taken.sender.id, taken.sender.name) == ("hello", HERE, "42", "Ada L")
    receipt = await channel.send(REPLY, key="k1")
    sent = await api.called("sendMessage")
    assert sent.fields["text"] == "<b>good</b> day"
    assert sent.json("link_preview_options") == {"is_disabled": True}
    assert "reply_parameters" not in sent.fields
    assert receipt.message_id.startswith("42:")


async def test_has_the_abilities_of_the_platform(channel: Channel) -> None:
    assert isinstance(channel, Drafts)
    assert isinstance(channel, Edits)
    assert isinstance(channel, ShowsTyping)
    assert isinstance(channel, OffersButtons)


async def test_in_a_group_it_replies_to_the_message_in_its_topic(channel: Channel, api: FakeBotApi) -> None:
    await channel.send(replace(REPLY, address=THERE), key="k1")
    sent = await api.called("sendMessage")
    assert sent.fields["message_thread_id"] == "7"
    assert sent.json("reply_parameters") == {"message_id": 9, "allow_sending_without_reply": True}


async def test_what_the_gateway_itself_says_is_not_taken_for_markdown(channel: Channel, api: FakeBotApi) -> None:
    await channel.send(Outbound(address=HERE, text="1. *star* <b>"), key="k1")
    sent = await api.called("sendMessage")
    assert sent.fields["text"] == "1. *star* <b>"
    assert "parse_mode" not in sent.fields


@pytest.mark.parametrize("refused", [UNPARSABLE, refusal(400, "Bad Request: ENTITIES_TOO_LONG")])
async def test_formatting_that_is_refused_is_sent_as_plain_text(
    channel: Channel, api: FakeBotApi, refused: tuple[int, Json]
) -> None:
    api.scripted["sendMessage"].append(refused)
    await channel.send(REPLY, key="k1")
    sent = await api.called("sendMessage", times=2)
    assert sent.fields["text"] == "**good** day"
    assert "parse_mode" not in sent.fields


@pytest.mark.parametrize(
    "text", ["[a]: http://b", "| a | b |\n|-|-|\n" + f"| {'x' * 90} | y |\n" * 30 + "| a | b |\n" * 30]
)
async def test_what_formatting_would_make_empty_or_too_long_is_plain(
    channel: Channel, api: FakeBotApi, text: str
) -> None:
    await channel.send(replace(REPLY, text=text), key="k1")
    assert (await api.called("sendMessage")).fields["text"] == text


async def test_the_same_key_is_sent_once(channel: Channel, api: FakeBotApi) -> None:
    first = await channel.send(REPLY, key="k1")
    assert await channel.send(REPLY, key="k1") == first
    assert await channel.send(REPLY, key="k2") != first
    assert len(api.calls_of("sendMessage")) == 2


async def test_an_accepted_message_is_not_sent_again_for_an_answer_that_cannot_be_read(
    channel: Channel, api: FakeBotApi
) -> None:
    api.scripted["sendMessage"].append((200, {"ok": True, "result": {"message_id": 5, "chat": "new kind"}}))
    assert await channel.send(REPLY, key="k1") == Receipt(message_id="42:5")


async def test_an_answer_that_says_nothing_leaves_the_message_in_doubt(channel: Channel, api: FakeBotApi) -> None:
    api.scripted["sendMessage"].append((200, {"ok": True}))
    with pytest.raises(Transient) as doubt:
        await channel.send(REPLY, key="k1")
    assert doubt.value.may_have_arrived


@pytest.mark.usefixtures("channel")
def test_what_answers_are_read_with_is_built_once() -> None:
    """It takes pydantic tens of milliseconds, on the event loop."""
    models: list[type[object]] = [
        Response[list[Update]],
        Response[Message],
        Response[Message | bool],
        Response[bool],
    ]
    built = [ref(model) for model in models]
    models.clear()
    gc.collect()
    assert all(model() is not None for model in built)


async def test_a_pause_that_telegram_asks_for_is_passed_on(channel: Channel, api: FakeBotApi) -> None:
    api.scripted["sendMessage"].append(refusal(429, "Too Many Requests", retry_after=17))
    with pytest.raises(Transient) as asked:
        await channel.send(REPLY, key="k1")
    assert asked.value.retry_after == 17


@pytest.mark.parametrize(
    ("answer", "may_have_arrived"),
    [
        (DROP, True),
        ((502, "<html>nginx</html>"), True),
        (refusal(502, "Bad Gateway"), False),
        (refusal(429, "Too Many Requests", retry_after=1), False),
    ],
)
async def test_a_telegram_that_is_ill_is_tried_again(
    channel: Channel,
    api: FakeBotApi,
    answer: tuple[int, object],
    may_have_arrived: bool,  # noqa: FBT001 - a table's column.
) -> None:
    api.scripted["sendMessage"].append(answer)
    with pytest.raises(Transient) as trouble:
        await channel.send(REPLY, key="k1")
    assert trouble.value.may_have_arrived is may_have_arrived


async def test_what_cannot_even_be_repeated_is_not_in_doubt(channel: Channel, api: FakeBotApi) -> None:
    """Typing and edits leave the same, however often they are sent."""
    assert isinstance(channel, ShowsTyping)
    assert isinstance(channel, Edits)
    api.scripted["sendChatAction"].append(DROP)
    api.scripted["editMessageText"].append(DROP)
    with pytest.raises(Transient) as trouble:
        await channel.show_typing(THERE)
    assert not trouble.value.may_have_arrived
    with pytest.raises(Transient) as trouble:
        await channel.edit(Receipt(message_id="42:5"), REPLY)
    assert not trouble.value.may_have_arrived


@pytest.mark.parametrize(
    "answer",
    [
        refusal(403, "Forbidden: bot was blocked by the user"),
        refusal(400, "Bad Request: chat not found"),
    ],
)
async def test_a_message_that_nobody_can_get_is_given_up(
    channel: Channel, api: FakeBotApi, answer: tuple[int, object]
) -> None:
    api.scripted["sendMessage"].append(answer)
    with pytest.raises(Undeliverable):
        await channel.send(REPLY, key="k1")


async def test_a_token_that_was_revoked_meanwhile_is_told_as_such(channel: Channel, api: FakeBotApi) -> None:
    for method in ("sendMessage", "editMessageText"):
        api.scripted[method].append(refusal(401, "Unauthorized"))
    with pytest.raises(AuthRejected):
        await channel.send(REPLY, key="k1")
    assert isinstance(channel, Edits)
    with pytest.raises(AuthRejected):
        await channel.edit(Receipt(message_id="42:5"), REPLY)


async def test_a_group_that_has_moved_is_found(channel: Channel, api: FakeBotApi) -> None:
    api.scripted["sendMessage"].append(refusal(400, "Bad Request: group chat was upgraded", migrate_to_chat_id=-1002))
    receipt = await channel.send(replace(REPLY, address=THERE), key="k1")
    assert receipt.message_id.startswith("-1002:")


async def test_buttons_hold_their_commands(channel: Channel, api: FakeBotApi) -> None:
    buttons = (Button(label="2 Trip", command="/session resume 2"), Button(label="long", command="/x" * 40))
    await channel.send(replace(REPLY, buttons=buttons), key="k1")
    assert (await api.called("sendMessage")).json("reply_markup") == {
        "inline_keyboard": [[{"text": "2 Trip", "callback_data": "/session resume 2"}]]
    }


async def test_a_sign_is_a_reaction_on_the_message(channel: Channel, api: FakeBotApi) -> None:
    assert isinstance(channel, Reacts)
    await channel.react(THERE, "5", "👀")
    reaction = await api.called("setMessageReaction")
    assert (reaction.fields["chat_id"], reaction.fields["message_id"]) == (THERE.peer, "5")
    assert reaction.json("reaction") == [{"type": "emoji", "emoji": "👀"}]
    await channel.unreact(THERE, "5", "👀")
    assert (await api.called("setMessageReaction", times=2)).json("reaction") == []


@pytest.mark.usefixtures("channel")
async def test_pressing_a_button_is_saying_its_command(api: FakeBotApi, core: Core) -> None:
    list_message = {"message_id": 5, "date": 1, "chat": GROUP, "is_topic_message": True, "message_thread_id": 7}
    await api.press(list_message, "/session resume 2", sender=BOB)
    taken = await core.heard()
    assert (taken.text, taken.sender.id, taken.address) == ("/session resume 2", "77", THERE)
    assert (await api.called("answerCallbackQuery")).fields["callback_query_id"] in taken.event_id


async def test_an_edit_without_a_change_is_no_error(channel: Channel, api: FakeBotApi) -> None:
    assert isinstance(channel, Edits)
    api.scripted["editMessageText"].append(refusal(400, "Bad Request: message is not modified: same text"))
    await channel.edit(Receipt(message_id="42:5"), REPLY)
    await channel.edit(Receipt(message_id="42:5"), REPLY)
    edited = await api.called("editMessageText", times=2)
    assert (edited.fields["message_id"], edited.fields["text"]) == ("5", "<b>good</b> day")


async def test_drafts_are_shown_in_private_chats_only(channel: Channel, api: FakeBotApi) -> None:
    assert isinstance(channel, Drafts)
    await channel.draft(replace(REPLY, address=THERE), key="k1")
    await channel.draft(replace(REPLY, text="good **da"), key="k1")
    await channel.draft(replace(REPLY, text="x" * 5000 + " end"), key="k1")
    first, second = api.calls_of("sendMessageDraft")
    assert first.fields["text"] == "good **da"
    assert first.fields["draft_id"] == second.fields["draft_id"] != "0"
    assert second.fields["text"].endswith(" end")


async def test_a_server_without_drafts_is_asked_once(channel: Channel, api: FakeBotApi) -> None:
    assert isinstance(channel, Drafts)
    api.lacks.add("sendMessageDraft")
    assert channel.can_draft(HERE)
    assert not channel.can_draft(THERE)
    await channel.draft(REPLY, key="k1")
    assert not channel.can_draft(HERE)
    await channel.draft(REPLY, key="k1")
    assert len(api.calls_of("sendMessageDraft")) == 1


async def test_one_who_has_blocked_the_bot_costs_nobody_else_their_drafts(channel: Channel, api: FakeBotApi) -> None:
    assert isinstance(channel, Drafts)
    api.scripted["sendMessageDraft"].append(refusal(403, "Forbidden: bot was blocked by the user"))
    await channel.draft(REPLY, key="k1")
    await channel.draft(REPLY, key="k1")
    assert len(api.calls_of("sendMessageDraft")) == 2


async def test_drafts_pause_as_long_as_telegram_asks(channel: Channel, api: FakeBotApi) -> None:
    assert isinstance(channel, Drafts)
    api.scripted["sendMessageDraft"].append(refusal(429, "Too Many Requests", retry_after=3600))
    await channel.draft(REPLY, key="k1")
    await channel.draft(REPLY, key="k1")
    assert len(api.calls_of("sendMessageDraft")) == 1


async def test_typing_is_shown_where_the_answer_will_be(channel: Channel, api: FakeBotApi) -> None:
    assert isinstance(channel, ShowsTyping)
    await channel.show_typing(THERE)
    shown = await api.called("sendChatAction")
    assert (shown.fields["action"], shown.fields["chat_id"], shown.fields["message_thread_id"]) == (
        "typing",
        "-1001",
        "7",
    )


@pytest.mark.usefixtures("channel")
async def test_the_menu_is_hung_up(api: FakeBotApi) -> None:
    assert (await api.called("setMyCommands")).json("commands") == [
        {"command": "new", "description": "Start a new conversation"}
    ]


async def test_a_menu_that_cannot_be_hung_up_yet_is_tried_again(api: FakeBotApi, core: Core, beats: Beats) -> None:
    api.scripted["setMyCommands"].append(refusal(429, "Too Many Requests: retry after 1", retry_after=1))
    async with running(opened(api, beats), core.deliver, beats):
        await api.called("setMyCommands", times=2)


async def test_messages_do_not_wait_for_the_menu(api: FakeBotApi, core: Core, beats: Beats) -> None:
    api.held.add("setMyCommands")
    async with running(opened(api, beats), core.deliver, beats):
        await api.called("setMyCommands")
        await api.say("hello")
        assert (await core.heard()).text == "hello"


async def test_a_menu_that_is_refused_stops_nothing(api: FakeBotApi, core: Core, beats: Beats) -> None:
    api.scripted["setMyCommands"].append(refusal(400, "Bad Request: BOT_COMMAND_INVALID"))
    async with running(opened(api, beats), core.deliver, beats):
        await api.say("hello")
        assert (await core.heard()).text == "hello"


@pytest.mark.usefixtures("channel")
async def test_updates_are_acknowledged_only_behind_what_was_taken(api: FakeBotApi, core: Core, beats: Beats) -> None:
    core.troubles = [Transient("the disk is full", retry_after=0.01)]
    await api.say("one")
    await api.say("two")
    assert [(await core.heard()).text for _ in range(2)] == ["one", "two"]
    await api.acknowledged()
    assert "the disk is full" in beats.heard


async def test_what_was_taken_before_the_trouble_does_not_come_again(api: FakeBotApi, beats: Beats) -> None:
    taken: list[str] = []

    async def deliver(inbound: Inbound) -> Verdict:
        if inbound.text == "two":
            raise Transient("shutting down", retry_after=3600)
        taken.append(inbound.text)
        return Verdict.ACCEPTED

    await api.say("one")
    await api.say("two")
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(opened(api, beats).run(deliver), name="channel")
        await beats.wait_for("shutting down".__eq__)
        task.cancel()
    assert taken == ["one"]
    assert [update["message"]["text"] for update in api.pending] == ["two"]


@pytest.mark.usefixtures("channel")
async def test_an_update_that_nobody_can_read_holds_up_no_other(api: FakeBotApi, core: Core) -> None:
    async with api._changed:  # noqa: SLF001 - both in one answer.
        api.pending.append({"update_id": 1, "message": {"message_id": "of a kind to come"}})
    await api.say("hello")
    assert (await core.heard()).text == "hello"
    await api.acknowledged()


@pytest.mark.usefixtures("channel")
async def test_a_lower_id_after_a_quiet_week_is_taken(api: FakeBotApi, core: Core) -> None:
    await api.say("before")
    await core.heard()
    await api.acknowledged()
    api._next_update = 7  # noqa: SLF001 - Telegram may start anywhere.
    await api.say("after")
    assert (await core.heard()).text == "after"


@pytest.mark.parametrize(
    "answer",
    [
        DROP,
        refusal(502, "Bad Gateway"),
        refusal(429, "Too Many Requests", retry_after=1),
        CONFLICT,
        refusal(400, "Bad Request: what nobody expects"),
        (200, "no json"),
    ],
)
async def test_trouble_while_polling_is_told_and_passes(
    api: FakeBotApi, core: Core, beats: Beats, answer: tuple[int, object]
) -> None:
    api.scripted["getUpdates"].append(answer)
    await api.say("hello")
    async with running(opened(api, beats), core.deliver, beats):
        assert (await core.heard()).text == "hello"
    assert len(beats.heard) == 2
    assert not any(TOKEN in reason for reason in beats.heard)


async def test_a_webhook_is_removed_without_losing_what_waits(api: FakeBotApi, core: Core, beats: Beats) -> None:
    api.webhook = "https://elsewhere.example/hook"
    await api.say("hello")
    async with running(opened(api, beats), core.deliver, beats):
        assert (await core.heard()).text == "hello"
    assert (await api.called("deleteWebhook")).fields["drop_pending_updates"] == "false"


@pytest.mark.parametrize("answer", [refusal(401, "Unauthorized"), refusal(404, "Not Found")])
async def test_a_token_that_is_refused_retires_the_channel(
    api: FakeBotApi, core: Core, beats: Beats, answer: tuple[int, object]
) -> None:
    api.scripted["getMe"].append(answer)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(AuthRejected, match="BotFather"):
            await opened(api, beats).run(core.deliver)


async def test_a_token_that_is_revoked_later_retires_it_too(api: FakeBotApi, core: Core, beats: Beats) -> None:
    api.scripted["getUpdates"].append(refusal(401, "Unauthorized"))
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(AuthRejected):
            await opened(api, beats).run(core.deliver)


async def test_nobody_waits_for_the_menu_when_the_token_is_revoked(api: FakeBotApi, core: Core, beats: Beats) -> None:
    api.scripted["setMyCommands"].append(refusal(429, "Too Many Requests: retry after 999", retry_after=999))
    api.scripted["getUpdates"].append(refusal(401, "Unauthorized"))
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(AuthRejected):
            await opened(api, beats).run(core.deliver)


async def test_no_error_tells_the_token(channel: Channel, api: FakeBotApi) -> None:
    api.scripted["sendMessage"] += [refusal(400, f"Bad Request: no {TOKEN}"), refusal(500, f"/bot{TOKEN}/x"), DROP]
    for key in ("k1", "k2", "k3"):
        with pytest.raises((Transient, Undeliverable)) as raised:
            await channel.send(REPLY, key=key)
        assert TOKEN not in str(raised.getrepr(style="long")).replace(f"TOKEN = '{TOKEN}'", "")


async def test_before_it_runs_sending_has_to_wait(api: FakeBotApi, beats: Beats) -> None:
    with pytest.raises(Transient):
        await opened(api, beats).send(REPLY, key="k1")


@pytest.mark.usefixtures("channel")
async def test_bots_and_service_messages_are_passed_over(api: FakeBotApi, core: Core) -> None:
    await api.say("I am a bot too", sender={**BOB, "is_bot": True})
    await api.say("", new_chat_title="a service message")
    await api.say("hello", sender=ADA)
    assert (await core.heard()).text == "hello"

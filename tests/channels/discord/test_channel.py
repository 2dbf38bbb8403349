"""The channel under the real discord.py, against a server that speaks Discord's REST API and gateway."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from channels.discord import open_channel
from channels.discord.errors import NO_INTENT
from channels.discord.events import WAITING
from config import ChannelSettings, Secret
from gateway.contract import (
    Address,
    Button,
    Channel,
    ChannelContext,
    DropsRepeats,
    Edits,
    Enclosure,
    FetchesFiles,
    Inbound,
    LooksBack,
    OffersButtons,
    Outbound,
    OutboundKind,
    PeerKind,
    Reacts,
    Receipt,
    SendsFiles,
    SessionInfo,
    ShowsTyping,
    Verdict,
)
from gateway.errors import AuthRejected, CannotStart, Transient, Undeliverable
from gateway.notebook import LooseLeaf
from gateway.testing import StubBrowser
from tests.channels.discord.harness import Beats, Core, opened, running
from tests.channels.discord.server import (
    ADA,
    ADAS,
    BOB,
    BOT,
    CHANNEL,
    CUT,
    GUILD,
    LOST,
    PATIENCE,
    THREAD,
    TOKEN,
    TOO_FAST,
    FakeDiscord,
    Json,
    discord_server,
    refusal,
)

HERE = Address(channel="discord", kind=PeerKind.DIRECT, peer="42")
THERE = Address(channel="discord", kind=PeerKind.CHANNEL, peer=CHANNEL, thread=THREAD)
REPLY = Outbound(address=HERE, text="**good** day", kind=OutboundKind.REPLY, reply_to="9")


@pytest.fixture
async def discord() -> AsyncIterator[FakeDiscord]:
    async with discord_server() as discord:
        yield discord


@pytest.fixture
async def channel(discord: FakeDiscord, core: Core, beats: Beats) -> AsyncIterator[Channel]:
    channel = opened(discord, beats)
    async with running(channel, core.deliver, beats):
        yield channel


def test_discord_py_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, channels.discord; print([name for name in sys.modules if name.split('.')[0] == 'discord'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("token", [None, Secret("no token"), Secret("Bot a.b.c"), Secret("a.b")])
def test_what_is_no_token_is_a_mistake_in_the_config(token: Secret | None, beats: Beats) -> None:
    context = ChannelContext(
        name="discord",
        account="work",
        settings=ChannelSettings(token=token),
        browser=StubBrowser(),
        notebook=LooseLeaf(),
        pulse=beats,
    )
    with pytest.raises(CannotStart, match=r"channels\.discord\.accounts\.work\.token"):
        open_channel(context)


async def test_before_it_runs_sending_has_to_wait(discord: FakeDiscord, beats: Beats) -> None:
    with pytest.raises(Transient):
        await opened(discord, beats).send(REPLY, key="k1")


async def test_has_the_abilities_of_the_platform(channel: Channel) -> None:
    for ability in (Edits, ShowsTyping, OffersButtons, DropsRepeats, Reacts, FetchesFiles, SendsFiles):
        assert isinstance(channel, ability)


async def test_text_goes_both_ways(channel: Channel, discord: FakeDiscord, core: Core) -> None:
    await discord.say("hello")
    taken = await core.heard()
    assert (taken.text, taken.address, taken.sender.id, taken.sender.name) == ("hello", HERE, "42", "Ada L")
    receipt = await channel.send(REPLY, key="k1")
    (call,) = discord.calls_of("send")
    assert call.body["content"] == "**good** day"
    assert call.body["allowed_mentions"] == {"parse": []}
    assert call.body["flags"] == 4
    assert "message_reference" not in call.body
    assert receipt.message_id == f"{ADAS}:{discord.sent()[0]['id']}"
    assert not discord.calls_of("direct")


async def test_somebody_who_has_not_written_since_the_start_is_found(channel: Channel, discord: FakeDiscord) -> None:
    await channel.send(REPLY, key="k1")
    await channel.send(REPLY, key="k2")
    assert len(discord.sent()) == 2
    assert len(discord.calls_of("direct")) == 1


async def test_a_thread_is_a_conversation_of_its_own(channel: Channel, discord: FakeDiscord, core: Core) -> None:
    asked = await discord.call_bot("hello", channel=THREAD)
    taken = await core.heard()
    assert (taken.address, taken.guild, taken.text, taken.is_addressed) == (THERE, GUILD, "hello", True)
    await channel.send(replace(REPLY, address=taken.address, reply_to=taken.message_id), key="k1")
    (sent,) = discord.sent(THREAD)
    assert sent["message_reference"] == {"message_id": int(asked["id"]), "fail_if_not_exists": False}


@pytest.mark.usefixtures("channel")
async def test_threads_that_the_gateway_tells_of_need_not_be_asked_for(discord: FakeDiscord, core: Core) -> None:
    thread = {"id": THREAD, "type": 11, "parent_id": CHANNEL, "guild_id": GUILD}
    await discord.gateway.dispatch("THREAD_CREATE", thread)
    await discord.call_bot("hello", channel=THREAD)
    assert (await core.heard()).address == THERE
    assert not discord.calls_of("channel")


async def test_its_own_role_is_as_good_as_its_name(discord: FakeDiscord, core: Core, beats: Beats) -> None:
    """Who types the name is offered both, and they look the same."""
    roles = [{"id": "951", "name": "all"}, {"id": "950", "name": "gate", "tags": {"bot_id": BOT["id"]}}]
    discord.gateway.guilds[0]["roles"] = roles
    async with running(opened(discord, beats), core.deliver, beats):
        await discord.say("<@&950> hello", channel=CHANNEL, author=BOB, mention_roles=["950"])
        await discord.say("<@&951> hello", channel=CHANNEL, author=BOB, mention_roles=["951"])
        taken = [await core.heard() for _ in range(2)]
    assert [(each.text, each.is_addressed) for each in taken] == [("hello", True), ("<@&951> hello", False)]


@pytest.mark.usefixtures("channel")
async def test_bots_and_what_the_platform_says_are_passed_over(discord: FakeDiscord, core: Core) -> None:
    await discord.say("myself", author={**BOT, "id": "42"})
    await discord.say("a hook", webhook_id="7")
    await discord.say("has pinned a message", type=6)
    await discord.gateway.dispatch("MESSAGE_CREATE", {"id": "1", "channel_id": ADAS, "author": "of a kind to come"})
    await discord.say("hello")
    assert (await core.heard()).text == "hello"


@pytest.mark.usefixtures("channel")
async def test_an_edit_names_what_it_changes_and_a_preview_is_none(discord: FakeDiscord, core: Core) -> None:
    said = await discord.say("helo")
    assert (await core.heard()).edits is None
    await discord.gateway.dispatch("MESSAGE_UPDATE", {**said, "embeds": [{"type": "link"}]})
    await discord.edit(said, "hello")
    edited = await core.heard()
    assert (edited.text, edited.edits) == ("hello", said["id"])
    assert edited.event_id != said["id"]


async def test_a_repeated_send_shows_one_message(channel: Channel, discord: FakeDiscord) -> None:
    first = await channel.send(REPLY, key="a key that is longer than a nonce may be")
    assert await channel.send(REPLY, key="a key that is longer than a nonce may be") == first
    assert await channel.send(REPLY, key="k2") != first
    assert len(discord.sent()) == 2
    assert all(call.body["enforce_nonce"] and len(call.body["nonce"]) == 25 for call in discord.calls_of("send"))


async def test_a_send_that_arrived_though_its_answer_was_lost_shows_one_message(
    channel: Channel, discord: FakeDiscord
) -> None:
    discord.scripted["send"].append(LOST)
    with pytest.raises(Transient) as lost:
        await channel.send(REPLY, key="k1")
    assert lost.value.may_have_arrived
    await channel.send(REPLY, key="k1")
    assert len(discord.sent()) == 1


async def test_what_was_cut_before_it_arrived_is_sent_again(channel: Channel, discord: FakeDiscord) -> None:
    discord.scripted["send"].append(CUT)
    with pytest.raises(Transient):
        await channel.send(REPLY, key="k1")
    assert not discord.sent()
    await channel.send(REPLY, key="k1")
    assert len(discord.sent()) == 1


async def test_a_pause_that_is_too_long_to_wait_for_is_passed_on(channel: Channel, discord: FakeDiscord) -> None:
    discord.scripted["send"].append(TOO_FAST)
    with pytest.raises(Transient) as asked:
        await channel.send(REPLY, key="k1")
    assert asked.value.retry_after == 3600


async def test_a_short_pause_is_kept(channel: Channel, discord: FakeDiscord) -> None:
    discord.scripted["send"].append(refusal(429, 0, "You are being rate limited.", retry_after=0.01))
    await channel.send(REPLY, key="k1")
    assert len(discord.sent()) == 1


async def test_a_discord_that_is_ill_is_tried_again(channel: Channel, discord: FakeDiscord) -> None:
    discord.scripted["send"].append(refusal(503, 0, "Service Unavailable"))
    with pytest.raises(Transient):
        await channel.send(REPLY, key="k1")


@pytest.mark.parametrize(
    "answer",
    [
        refusal(403, 50007, "Cannot send messages to this user"),
        refusal(403, 50001, "Missing Access"),
        refusal(404, 10003, "Unknown Channel"),
    ],
)
async def test_a_message_that_nobody_can_get_is_given_up(
    channel: Channel, discord: FakeDiscord, answer: tuple[int, object]
) -> None:
    discord.scripted["send"].append(answer)
    with pytest.raises(Undeliverable):
        await channel.send(REPLY, key="k1")


async def test_an_address_that_is_none_is_given_up(channel: Channel) -> None:
    with pytest.raises(Undeliverable):
        await channel.send(replace(REPLY, address=replace(HERE, peer="ada")), key="k1")


async def test_a_token_that_was_revoked_meanwhile_is_told_as_such(channel: Channel, discord: FakeDiscord) -> None:
    for call in ("send", "edit", "history"):
        discord.scripted[call].append(refusal(401, 0, "401: Unauthorized"))
    with pytest.raises(AuthRejected):
        await channel.send(REPLY, key="k1")
    assert isinstance(channel, Edits)
    with pytest.raises(AuthRejected):
        await channel.edit(Receipt(message_id=f"{ADAS}:1"), REPLY)
    with pytest.raises(AuthRejected):
        await looked_back(channel, REPLY)


async def test_what_the_gateway_itself_says_is_not_taken_for_markdown(channel: Channel, discord: FakeDiscord) -> None:
    await channel.send(Outbound(address=HERE, text="1. *star* _a_"), key="k1")
    assert discord.sent()[0]["content"] == r"1. \*star\* \_a\_"


async def test_a_form_that_is_refused_is_sent_as_bare_text(channel: Channel, discord: FakeDiscord) -> None:
    discord.scripted["send"].append(refusal(400, 50035, "Invalid Form Body"))
    buttons = (Button(label="x", command="/x"),)
    await channel.send(replace(REPLY, text="| a |\n|-|\n| b |", buttons=buttons), key="k1")
    (sent,) = discord.sent()
    assert sent["content"] == "| a |\n|-|\n| b |"
    assert "components" not in sent


@pytest.mark.parametrize(
    "refused",
    [
        refusal(403, 160002, "Cannot reply without permission to read message history"),
        refusal(403, 160009, "Cannot reference a message without permission to read message history"),
        refusal(400, 50035, "Invalid Form Body: Cannot reply to a system message"),
    ],
)
async def test_where_it_may_not_reply_it_writes(
    channel: Channel, discord: FakeDiscord, refused: tuple[int, Json]
) -> None:
    discord.scripted["send"].append(refused)
    await channel.send(replace(REPLY, address=THERE), key="k1")
    (sent,) = discord.sent(THREAD)
    assert sent["content"] == REPLY.text
    assert "message_reference" not in sent


async def test_what_drawing_would_make_too_long_is_left_as_it_is(channel: Channel, discord: FakeDiscord) -> None:
    table = "| a | b |\n|-|-|\n" + f"| {'x' * 60} | y |\n" + "| a | b |\n" * 100
    await channel.send(replace(REPLY, text=table), key="k1")
    assert discord.sent()[0]["content"] == table.strip()


async def test_an_edit_changes_the_message_and_none_is_made_without_a_change(
    channel: Channel, discord: FakeDiscord
) -> None:
    assert isinstance(channel, Edits)
    receipt = await channel.send(REPLY, key="k1")
    await channel.edit(receipt, REPLY)
    await channel.edit(receipt, replace(REPLY, text="good night"))
    await channel.edit(receipt, replace(REPLY, text="good night"))
    assert discord.sent()[0]["content"] == "good night"
    assert len(discord.calls_of("edit")) == 1


async def test_a_draft_that_was_sent_before_a_crash_is_edited_to_what_it_should_show(
    channel: Channel, discord: FakeDiscord
) -> None:
    """Discord answers a repeated send with the first message, which shows less."""
    await channel.send(replace(REPLY, text="go"), key="k1")
    await channel.send(replace(REPLY, text="good"), key="k1")
    assert [message["content"] for message in discord.sent()] == ["good"]


async def test_a_message_that_is_gone_cannot_be_edited(channel: Channel) -> None:
    assert isinstance(channel, Edits)
    with pytest.raises(Undeliverable):
        await channel.edit(Receipt(message_id=f"{ADAS}:1"), REPLY)


async def test_typing_and_reactions_are_shown_where_the_message_is(channel: Channel, discord: FakeDiscord) -> None:
    assert isinstance(channel, ShowsTyping)
    assert isinstance(channel, Reacts)
    await channel.show_typing(THERE)
    await channel.react(THERE, "12", "👀")
    assert (await discord.called("typing")).path == f"/api/channels/{THREAD}/typing"
    await channel.unreact(THERE, "12", "👀")
    for call in (await discord.called("react"), await discord.called("unreact")):
        assert f"/channels/{THREAD}/messages/12/reactions/" in call.path


async def test_buttons_hold_their_commands(channel: Channel, discord: FakeDiscord) -> None:
    buttons = tuple(Button(label=f"{number} Trip", command=f"/session resume {number}") for number in range(7))
    await channel.send(replace(REPLY, buttons=(*buttons, Button(label="long", command="/x" * 60))), key="k1")
    rows = discord.sent()[0]["components"]
    assert [len(row["components"]) for row in rows] == [5, 2]
    assert rows[0]["components"][2]["custom_id"] == "/session resume 2"


@pytest.mark.usefixtures("channel")
async def test_pressing_a_button_is_saying_its_command(discord: FakeDiscord, core: Core) -> None:
    data = {"custom_id": "/session resume 2", "component_type": 2}
    acted = await discord.act(3, data, channel=THREAD, author=BOB, message={"id": "55"})
    taken = await core.heard()
    assert (taken.text, taken.sender.id, taken.address, taken.guild) == ("/session resume 2", "77", THERE, GUILD)
    assert acted["id"] in taken.event_id
    assert (await discord.called("answer_interaction")).body == {"type": 6}
    assert not discord.calls_of("tell_interaction")


@pytest.mark.usefixtures("channel")
async def test_a_button_that_holds_no_command_is_out_of_date(discord: FakeDiscord, core: Core) -> None:
    await discord.act(3, {"custom_id": "from another bot's life", "component_type": 2})
    told = await discord.called("tell_interaction")
    assert "out of date" in told.body["content"]
    assert told.body["flags"] == 64
    assert core.taken.empty()


@pytest.mark.usefixtures("channel")
@pytest.mark.parametrize(("data", "fields"), [({}, {}), ({"name": "new"}, {"user": None})])
async def test_what_cannot_be_read_of_an_interaction_ends_nothing(
    discord: FakeDiscord, core: Core, data: Json, fields: Json
) -> None:
    await discord.act(2, data, **fields)
    assert "out of date" in (await discord.called("tell_interaction")).body["content"]
    await discord.say("hello")
    assert (await core.heard()).text == "hello"
    assert len(discord.gateway.identifies) == 1


@pytest.mark.usefixtures("channel")
async def test_a_stranger_who_presses_is_told_so_alone(discord: FakeDiscord, core: Core) -> None:
    core.verdict = Verdict.IGNORED
    await discord.act(3, {"custom_id": "/session resume 2", "component_type": 2}, channel=CHANNEL, author=BOB)
    assert "do not answer you here" in (await discord.called("tell_interaction")).body["content"]


async def test_a_slash_command_is_acknowledged_before_the_core_has_it(discord: FakeDiscord, beats: Beats) -> None:
    """Discord waits for three seconds, a disk may take longer."""
    gate = asyncio.Event()

    async def slow(_inbound: object) -> Verdict:
        await gate.wait()
        return Verdict.ACCEPTED

    async with running(opened(discord, beats), slow, beats):
        await discord.act(2, {"name": "new", "options": [{"type": 3, "name": "title", "value": "Trip"}]})
        assert (await discord.called("answer_interaction")).body == {"type": 5, "data": {"flags": 64}}
        gate.set()
        await discord.called("clear_interaction")


async def test_a_slash_command_is_taken_however_long_the_core_is_busy(discord: FakeDiscord, beats: Beats) -> None:
    """Its acknowledgement is long over when the message before it has been taken."""
    gate, taken = asyncio.Event(), asyncio.Queue[str]()

    async def slow(inbound: Inbound) -> Verdict:
        await gate.wait()
        taken.put_nowait(inbound.text)
        return Verdict.ACCEPTED

    async with running(opened(discord, beats), slow, beats):
        await discord.say("first")
        await discord.act(2, {"name": "new"})
        await discord.called("answer_interaction")
        answering = {task for task in asyncio.all_tasks() if task.get_name().startswith("interaction:")}
        if answering:
            await asyncio.wait(answering)
        gate.set()
        assert [await taken.get(), await taken.get()] == ["first", "/new"]
        await discord.called("clear_interaction")


async def test_a_full_disk_does_not_keep_it_from_ending(discord: FakeDiscord, core: Core, beats: Beats) -> None:
    class Full(LooseLeaf):
        async def write(self, facts: Mapping[str, str | None]) -> None:
            raise Transient(f"There is no room for {len(facts)} facts.")

    channel = opened(discord, beats, notebook=Full())
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(channel.run(core.deliver), name="channel")
        await beats.wait_for("up".__eq__)
        await discord.say("hello")
        await beats.wait_for(lambda beat: "no room" in beat)
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled()


@pytest.mark.usefixtures("channel")
async def test_a_slash_command_is_what_would_have_been_typed(discord: FakeDiscord, core: Core) -> None:
    await discord.act(2, {"name": "new", "options": [{"type": 3, "name": "title", "value": "Trip"}]})
    taken = await core.heard()
    assert (taken.text, taken.address, taken.sender.name) == ("/new Trip", HERE, "Ada L")
    await discord.called("clear_interaction")


@pytest.mark.usefixtures("channel")
async def test_who_acts_while_the_core_takes_nothing_is_told_to_try_again(discord: FakeDiscord, core: Core) -> None:
    core.troubles = [Transient("The disk is full.")]
    await discord.act(2, {"name": "new"})
    assert (await discord.called("tell_interaction")).body["content"] == "The disk is full."


async def test_numbers_of_sessions_are_completed(discord: FakeDiscord, core: Core, beats: Beats) -> None:
    now = datetime.now(UTC)
    browser = StubBrowser(
        infos=[
            SessionInfo(number=12, title="Trip", messages=2, updated_at=now, is_active=True),
            SessionInfo(number=1, title="Router", messages=2, updated_at=now, is_active=False),
        ]
    )
    async with running(opened(discord, beats, browser=browser), core.deliver, beats):
        begun = {"type": 4, "name": "number", "value": "rout", "focused": True}
        await discord.act(4, {"name": "session", "options": [{"type": 1, "name": "resume", "options": [begun]}]})
        answered = await discord.called("answer_interaction")
    assert answered.body == {"type": 8, "data": {"choices": [{"name": "1 Router", "value": 1}]}}
    assert browser.asked_for[0][0] == HERE
    assert core.taken.empty()


async def test_the_menu_is_told_to_discord_only_when_it_has_changed(
    discord: FakeDiscord, core: Core, beats: Beats
) -> None:
    for _ in range(2):
        async with running(opened(discord, beats), core.deliver, beats):
            pass
        beats.heard.clear()
    assert [command["name"] for command in discord.commands] == ["new"]
    assert len(discord.calls_of("set_commands")) == 1


async def test_a_menu_that_is_refused_stops_nothing(discord: FakeDiscord, core: Core, beats: Beats) -> None:
    discord.scripted["set_commands"].append(refusal(400, 50035, "Invalid Form Body"))
    async with running(opened(discord, beats), core.deliver, beats):
        await discord.say("hello")
        assert (await core.heard()).text == "hello"


async def test_without_the_intent_for_content_it_asks_for_none_and_says_so(
    discord: FakeDiscord, core: Core, beats: Beats, capsys: pytest.CaptureFixture[str]
) -> None:
    discord.flags = 0
    async with running(opened(discord, beats), core.deliver, beats):
        await discord.say("", channel=CHANNEL, author=BOB)
        await discord.say("hello")
        assert (await core.heard()).text == "hello"
    assert not discord.gateway.identifies[0]["intents"] & (1 << 15)
    assert "Message Content Intent" in capsys.readouterr().out


@pytest.mark.parametrize(("code", "word"), [(4004, "token"), (4014, "Message Content Intent"), (4013, "intents")])
async def test_what_discord_refuses_for_good_retires_the_channel(
    discord: FakeDiscord, core: Core, beats: Beats, code: int, word: str
) -> None:
    discord.gateway.refusals.append(code)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(AuthRejected, match=word):
            await opened(discord, beats).run(core.deliver)
    assert len(discord.gateway.identifies) == 1
    assert NO_INTENT.count(".") == 1


async def test_a_token_that_is_refused_retires_the_channel(discord: FakeDiscord, core: Core, beats: Beats) -> None:
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(AuthRejected, match="token"):
            await opened(discord, beats, token="a.b.c").run(core.deliver)


async def test_what_the_core_cannot_take_now_waits_in_its_order(discord: FakeDiscord, core: Core, beats: Beats) -> None:
    async with running(opened(discord, beats), core.deliver, beats):
        core.troubles = [Transient("the disk is full", retry_after=0.01)]
        await discord.say("one")
        await discord.say("two")
        assert [(await core.heard()).text for _ in range(2)] == ["one", "two"]
        await beats.wait_for("the disk is full".__eq__)
    assert beats.heard[-1] == "up"


async def test_what_was_written_while_it_was_down_is_caught_up_on(
    discord: FakeDiscord, core: Core, beats: Beats
) -> None:
    notebook = LooseLeaf()
    async with running(opened(discord, beats, notebook=notebook), core.deliver, beats):
        await discord.say("one")
        await discord.call_bot("two", channel=THREAD)
        assert [(await core.heard()).text for _ in range(2)] == ["one", "two"]
    discord.written("a bot", author=BOT)
    for number in range(150):
        discord.written(f"three {number}")
    discord.written(f"<@{BOT['id']}> four", channel=THREAD, author=BOB, mentions=[BOT])
    beats.heard.clear()
    async with running(opened(discord, beats, notebook=notebook), core.deliver, beats):
        caught = [await core.heard() for _ in range(151)]
        await discord.say("five")
        assert (await core.heard()).text == "five"
    assert [inbound.text for inbound in caught] == [*(f"three {number}" for number in range(150)), "four"]
    assert (caught[-1].address, caught[-1].guild) == (THERE, GUILD)


async def test_a_flood_that_nobody_can_take_at_once_is_caught_up_on(discord: FakeDiscord, beats: Beats) -> None:
    gate, taken, count = asyncio.Event(), list[str](), WAITING + 50
    done = asyncio.Event()

    async def deliver(inbound: Inbound) -> Verdict:
        if taken:
            await gate.wait()
        taken.append(inbound.text)
        if inbound.text == "last":
            done.set()
        return Verdict.ACCEPTED

    async with running(opened(discord, beats), deliver, beats):
        for number in range(count):
            await discord.say(f"{number}")
        await discord.gateway.read()
        gate.set()
        await discord.called("history")
        await discord.say("last")
        await done.wait()
    assert list(dict.fromkeys(taken)) == [*(f"{number}" for number in range(count)), "last"]


async def test_a_chat_that_cannot_be_seen_any_more_holds_up_no_other(
    discord: FakeDiscord, core: Core, beats: Beats
) -> None:
    notebook = LooseLeaf()
    async with running(opened(discord, beats, notebook=notebook), core.deliver, beats):
        await discord.say("one")
        await core.heard()
    discord.scripted["history"].append(refusal(403, 50001, "Missing Access"))
    beats.heard.clear()
    async with running(opened(discord, beats, notebook=notebook), core.deliver, beats):
        await discord.say("two", author=BOB)
        assert (await core.heard()).text == "two"


async def test_a_history_that_cannot_be_read_now_is_read_later(discord: FakeDiscord, core: Core, beats: Beats) -> None:
    notebook = LooseLeaf()
    async with running(opened(discord, beats, notebook=notebook), core.deliver, beats):
        await discord.say("one")
        await core.heard()
    discord.written("two")
    discord.scripted["history"].append(refusal(503, 0, "Service Unavailable"))
    beats.heard.clear()
    async with running(opened(discord, beats, notebook=notebook), core.deliver, beats):
        assert (await core.heard()).text == "two"


async def test_a_file_is_fetched_from_where_it_is_now(channel: Channel, discord: FakeDiscord, core: Core) -> None:
    discord.files["a.txt"] = b"what is in it"
    file = {"id": "8", "filename": "../a.txt", "size": 13, "content_type": "text/plain; charset=utf-8"}
    said = await discord.say("look", attachments=[{**file, "url": "http://an-address.invalid/that-is-old"}])
    (attachment,) = (await core.heard()).attachments
    assert (attachment.name, attachment.media_type) == ("_a.txt", "text/plain")
    discord.messages[ADAS][-1]["attachments"] = [{**file, "url": f"{discord.url}/files/a.txt"}]
    assert isinstance(channel, FetchesFiles)
    assert b"".join([chunk async for chunk in channel.fetch(attachment, HERE)]) == b"what is in it"
    discord.scripted["file"] += [(503, b""), (429, b""), (404, b"")]
    for reaction in (Transient, Transient, Undeliverable):
        with pytest.raises(reaction):
            _ = [chunk async for chunk in channel.fetch(attachment, HERE)]
    discord.messages[ADAS].remove(next(each for each in discord.messages[ADAS] if each["id"] == said["id"]))
    with pytest.raises(Undeliverable):
        _ = [chunk async for chunk in channel.fetch(attachment, HERE)]


async def test_a_file_is_sent_once(channel: Channel, discord: FakeDiscord, tmp_path: Path) -> None:
    assert isinstance(channel, SendsFiles)
    path = tmp_path / "x"
    path.write_text("what is in it")
    file = Enclosure(name="a.txt", media_type="text/plain", size=13, ref="x")
    for _ in range(2):
        await channel.send_file(replace(REPLY, text="", file=file), path, key="k1")
    (sent,) = discord.sent()
    assert sent["files"] == ["what is in it"]


async def test_no_error_tells_the_token(channel: Channel, discord: FakeDiscord) -> None:
    discord.scripted["send"] += [refusal(400, 1, f"no {TOKEN}"), refusal(503, 1, f"{TOKEN}"), CUT]
    for key in ("k1", "k2", "k3"):
        with pytest.raises((Transient, Undeliverable)) as raised:
            await channel.send(REPLY, key=key)
        assert TOKEN not in str(raised.getrepr(style="short"))
    assert ADA["id"] == HERE.peer


async def looked_back(channel: Channel, message: Outbound, known: set[str] | None = None) -> Receipt | None:
    assert isinstance(channel, LooksBack)
    return await channel.look_back(message, since=datetime.now(UTC) - timedelta(minutes=1), known=known or set())


async def test_what_has_arrived_is_found_in_the_chat(channel: Channel, discord: FakeDiscord) -> None:
    assert await looked_back(channel, REPLY) is None
    receipt = await channel.send(REPLY, key="k1")
    discord.written("**good** day")
    assert await looked_back(channel, REPLY) == receipt
    assert await looked_back(channel, REPLY, {receipt.message_id}) is None
    assert await looked_back(channel, replace(REPLY, text="good night")) is None


async def test_in_a_server_only_the_reply_to_the_same_message_is_taken_for_it(
    channel: Channel, discord: FakeDiscord, core: Core
) -> None:
    asked = [await discord.call_bot("same", channel=THREAD) for _ in range(2)]
    replies = [replace(REPLY, address=THERE, reply_to=(await core.heard()).message_id) for _ in asked]
    receipt = await channel.send(replies[0], key="k1")
    assert [await looked_back(channel, reply) for reply in replies] == [receipt, None]


async def test_where_the_history_may_not_be_read_nobody_can_tell(channel: Channel, discord: FakeDiscord) -> None:
    """Discord does not refuse: it answers with nothing."""
    discord.scripted["history"].append((200, []))
    with pytest.raises(Undeliverable):
        await looked_back(channel, replace(REPLY, address=THERE))

"""Slash commands, buttons and completions."""

import asyncio
from datetime import UTC, datetime

import pytest
from msgspec import structs

from channels.discord.interactions import are_same_commands, command_text, session_choices, slash_commands
from channels.discord.markup import escape
from channels.discord.responses import TOO_LATE
from gateway.commands.registry import COMMANDS
from gateway.contract import (
    Address,
    CommandInfo,
    Inbound,
    Outbound,
    OutboundKind,
    Sender,
    SessionInfo,
    Verdict,
)
from gateway.errors import NotAccepted
from gateway.testing import StubBrowser
from tests.channels.discord.fake_discord import (
    ADAS,
    BOB,
    CHANNEL,
    GUILD,
    THREAD,
    FakeDiscord,
    Json,
)
from tests.channels.discord.harness import (
    ADAS_CHAT,
    THREAD_CHAT,
    Core,
    PulseRecorder,
    open_discord,
    running,
)

ALL = [
    CommandInfo(name=command.name, arguments=command.arguments, summary=command.summary, aliases=command.aliases)
    for command in COMMANDS
]


@pytest.mark.usefixtures("channel")
async def test_pressing_a_button_submits_its_command(discord: FakeDiscord, core: Core) -> None:
    data = {"custom_id": "/session resume 2", "component_type": 2}
    acted = await discord.act(3, data, channel=THREAD, author=BOB, message={"id": "55"})
    taken = await core.next_message()
    assert (taken.text, taken.sender.id, taken.address, taken.guild) == ("/session resume 2", "77", THREAD_CHAT, GUILD)
    assert acted["id"] in taken.event_id
    assert (await discord.called("answer_interaction")).body == {"type": 6}
    assert not discord.calls_of("tell_interaction")


@pytest.mark.usefixtures("channel")
async def test_a_button_without_a_command_is_reported_as_out_of_date(discord: FakeDiscord, core: Core) -> None:
    await discord.act(3, {"custom_id": "from another bot's life", "component_type": 2})
    told = await discord.called("tell_interaction")
    assert "out of date" in told.body["content"]
    assert told.body["flags"] == 64
    assert core.taken.empty()


@pytest.mark.usefixtures("channel")
@pytest.mark.parametrize(("data", "fields"), [({}, {}), ({"name": "new"}, {"user": None})])
async def test_an_unreadable_interaction_does_not_stop_the_channel(
    discord: FakeDiscord, core: Core, data: Json, fields: Json
) -> None:
    await discord.act(2, data, **fields)
    assert "out of date" in (await discord.called("tell_interaction")).body["content"]
    await discord.say("hello")
    assert (await core.next_message()).text == "hello"
    assert len(discord.gateway.identifies) == 1


@pytest.mark.usefixtures("channel")
async def test_a_stranger_who_presses_a_button_is_refused_in_private(discord: FakeDiscord, core: Core) -> None:
    core.verdict = Verdict.IGNORED
    await discord.act(3, {"custom_id": "/session resume 2", "component_type": 2}, channel=CHANNEL, author=BOB)
    assert "can't answer you here" in (await discord.called("tell_interaction")).body["content"]


async def test_a_slash_command_is_acknowledged_before_the_core_accepts_it(
    discord: FakeDiscord, pulse: PulseRecorder
) -> None:
    """Discord waits three seconds; a slow disk can take longer."""
    gate = asyncio.Event()

    async def slow(_inbound: object) -> Verdict:
        await gate.wait()
        return Verdict.ACCEPTED

    async with running(open_discord(discord, pulse), slow, pulse):
        await discord.act(2, {"name": "new", "options": [{"type": 3, "name": "title", "value": "Trip"}]})
        assert (await discord.called("answer_interaction")).body == {"type": 5}
        gate.set()


async def test_a_slash_command_is_delivered_however_long_the_core_is_busy(
    discord: FakeDiscord, pulse: PulseRecorder
) -> None:
    """Its acknowledgement is long done when the core takes the message before it."""
    gate, taken = asyncio.Event(), asyncio.Queue[str]()

    async def slow(inbound: Inbound) -> Verdict:
        await gate.wait()
        taken.put_nowait(inbound.text)
        return Verdict.ACCEPTED

    async with running(open_discord(discord, pulse), slow, pulse):
        await discord.say("first")
        await discord.act(2, {"name": "new"})
        await discord.called("answer_interaction")
        answering = {task for task in asyncio.all_tasks() if task.get_name().startswith("interaction:")}
        if answering:
            await asyncio.wait(answering)
        gate.set()
        assert [await taken.get(), await taken.get()] == ["first", "/new"]


@pytest.mark.usefixtures("channel")
async def test_a_slash_command_is_delivered_as_typed_text(discord: FakeDiscord, core: Core) -> None:
    await discord.act(2, {"name": "new", "options": [{"type": 3, "name": "title", "value": "Trip"}]})
    taken = await core.next_message()
    assert (taken.text, taken.address, taken.sender.name) == ("/new Trip", ADAS_CHAT, "Ada L")


@pytest.mark.usefixtures("channel")
async def test_the_person_is_told_why_the_core_did_not_take_a_command(discord: FakeDiscord, core: Core) -> None:
    core.errors = [NotAccepted("The disk is full.")]
    await discord.act(2, {"name": "new"})
    assert (await discord.called("tell_interaction")).body["content"] == "The disk is full."


BROWSER_COMMANDS = [
    CommandInfo(name="new", arguments="[title]", summary="Start"),
    CommandInfo(name="session list", arguments="", summary="List", aliases=("session",), is_personal=True),
    CommandInfo(name="session close", arguments="[number]", summary="Close"),
    CommandInfo(name="whoami", arguments="", summary="Who", is_personal=True),
]


class CommandBrowser(StubBrowser):
    def commands(self, _address: Address | None = None, _sender: Sender | None = None) -> list[CommandInfo]:
        return BROWSER_COMMANDS


def answer_to(inbound: Inbound, text: str, **fields: object) -> Outbound:
    message = Outbound(address=inbound.address, text=text, reply_to=inbound.message_id)
    return structs.replace(message, **fields)


@pytest.mark.parametrize(
    ("channel", "command", "is_private"),
    [
        (CHANNEL, {"name": "whoami"}, True),
        (CHANNEL, {"name": "session", "options": [{"type": 1, "name": "list"}]}, True),
        (CHANNEL, {"name": "session", "options": [{"type": 1, "name": "close"}]}, False),
        (CHANNEL, {"name": "new"}, False),
        (ADAS, {"name": "whoami"}, False),
    ],
)
async def test_the_answer_appears_below_its_command(
    discord: FakeDiscord, core: Core, pulse: PulseRecorder, channel: str, command: Json, *, is_private: bool
) -> None:
    """On a server, only the person who sent a personal command sees it. Every other answer names the command."""
    opened = open_discord(discord, pulse, browser=CommandBrowser())
    async with running(opened, core.deliver, pulse):
        await discord.act(2, command, channel=channel)
        inbound = await core.next_message()
        receipts = [await opened.send(answer_to(inbound, f"Part {part}."), key=f"n.{part}") for part in (1, 2)]
    shown = discord.private(channel) if is_private else discord.sent(channel)
    assert [message["content"] for message in shown] == ["Part 1.", "Part 2."]
    assert [f"{channel}:{message['id']}" for message in shown] == [receipt.message_id for receipt in receipts]
    assert all("interaction" in message for message in shown)
    assert not (discord.sent(channel) if is_private else discord.private(channel))
    assert not discord.calls_of("clear_interaction")


async def test_an_answer_after_the_interaction_expired_is_an_ordinary_message(
    discord: FakeDiscord, core: Core, pulse: PulseRecorder
) -> None:
    opened = open_discord(discord, pulse, browser=CommandBrowser())
    async with running(opened, core.deliver, pulse):
        await discord.act(2, {"name": "new"}, channel=CHANNEL)
        inbound = await core.next_message()
        discord.expired = True
        await opened.send(answer_to(inbound, "Started."), key="n")
        discord.expired = False
        await opened.send(answer_to(inbound, "More."), key="n.1")
    assert [message["content"] for message in discord.sent(CHANNEL)] == ["Started.", "More."]
    assert all("message_reference" not in message for message in discord.sent(CHANNEL))


async def test_a_late_answer_to_a_personal_command_is_not_shown_to_the_server(
    discord: FakeDiscord, core: Core, pulse: PulseRecorder
) -> None:
    opened = open_discord(discord, pulse, browser=CommandBrowser())
    async with running(opened, core.deliver, pulse):
        await discord.act(2, {"name": "whoami"}, channel=CHANNEL)
        inbound = await core.next_message()
        discord.expired = True
        await opened.send(answer_to(inbound, "You have used 12 tokens."), key="n")
    assert [message["content"] for message in discord.sent(CHANNEL)] == [escape(TOO_LATE)]


async def test_the_answer_of_the_agent_to_a_command_is_an_ordinary_message(
    discord: FakeDiscord, core: Core, pulse: PulseRecorder
) -> None:
    """It is streamed by edits. The command stays visible above it."""
    opened = open_discord(discord, pulse, browser=CommandBrowser())
    async with running(opened, core.deliver, pulse):
        await discord.act(2, {"name": "new"}, channel=CHANNEL)
        inbound = await core.next_message()
        await opened.send(answer_to(inbound, "Once more.", kind=OutboundKind.REPLY), key="turn")
    assert [message["content"] for message in discord.sent(CHANNEL)] == ["The answer is below.", "Once more."]


async def test_a_refusal_of_a_public_command_is_private(discord: FakeDiscord, core: Core, pulse: PulseRecorder) -> None:
    core.verdict = Verdict.IGNORED
    opened = open_discord(discord, pulse, browser=CommandBrowser())
    async with running(opened, core.deliver, pulse):
        await discord.act(2, {"name": "new"}, channel=CHANNEL, author=BOB)
        await discord.until(discord.private)
    assert "can't answer you here" in discord.private()[0]["content"]
    assert not discord.sent(CHANNEL)


async def test_session_numbers_are_completed(discord: FakeDiscord, core: Core, pulse: PulseRecorder) -> None:
    now = datetime.now(UTC)
    browser = StubBrowser(
        infos=[
            SessionInfo(number=12, title="Trip", messages=2, updated_at=now, is_active=True),
            SessionInfo(number=1, title="Router", messages=2, updated_at=now, is_active=False),
        ]
    )
    async with running(open_discord(discord, pulse, browser=browser), core.deliver, pulse):
        begun = {"type": 4, "name": "number", "value": "rout", "focused": True}
        await discord.act(4, {"name": "session", "options": [{"type": 1, "name": "resume", "options": [begun]}]})
        answered = await discord.called("answer_interaction")
    assert answered.body == {"type": 8, "data": {"choices": [{"name": "1 Router", "value": 1}]}}
    assert browser.asked_for[0][0] == ADAS_CHAT
    assert core.taken.empty()


def test_every_command_is_registered_once_within_discords_limits() -> None:
    entries = slash_commands(ALL)
    names = [
        f"{entry['name']} {option['name']}" if option else entry["name"]
        for entry in entries
        for option in ([each for each in entry["options"] if each["type"] == 1] or [None])
    ]
    known = {name: command.name for command in ALL for name in (command.name, *command.aliases)}
    assert sorted(known[name] for name in names) == sorted(command.name for command in ALL)
    assert "pair list" in names
    assert len(entries) <= 100
    for entry in entries:
        assert all(len(each["description"]) <= 100 for each in (entry, *entry["options"]))
        assert all(len(each["options"]) <= 25 for each in (entry, *entry["options"]) if "options" in each)


def test_session_numbers_are_autocompleted_and_required_options_come_first() -> None:
    session = next(entry for entry in slash_commands(ALL) if entry["name"] == "session")
    rename = next(option for option in session["options"] if option["name"] == "rename")
    title, number = rename["options"]
    assert (title["name"], title["required"], title["autocomplete"]) == ("title", True, False)
    assert (number["name"], number["required"], number["autocomplete"]) == ("number", False, True)


def test_comparing_commands_ignores_fields_and_order_of_discord() -> None:
    ours = slash_commands(ALL)
    theirs = [
        {"id": str(number), "version": "1", "nsfw": False, **{key: value for key, value in entry.items() if value}}
        for number, entry in enumerate(reversed(ours))
    ]
    assert are_same_commands(ours, theirs)
    assert not are_same_commands(ours, theirs[1:])
    assert not are_same_commands(ours, [{**theirs[0], "description": "other"}, *theirs[1:]])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"name": "status"}, "/status"),
        ({"name": "new", "options": [{"type": 3, "name": "title", "value": "A trip"}]}, "/new A trip"),
        ({"name": "session", "options": [{"type": 1, "name": "list"}]}, "/session list"),
        (
            {
                "name": "session",
                "options": [
                    {
                        "type": 1,
                        "name": "rename",
                        "options": [
                            {"type": 3, "name": "title", "value": "Trip"},
                            {"type": 4, "name": "number", "value": 2},
                        ],
                    }
                ],
            },
            "/session rename 2 Trip",
        ),
        ({"name": "gone", "options": [{"type": 3, "name": "x", "value": "y"}]}, "/gone y"),
    ],
)
def test_slash_command_data_becomes_typed_text(data: dict[str, object], expected: str) -> None:
    assert command_text(data, ALL) == expected


def test_choices_stay_within_discords_limits() -> None:
    sessions = [
        SessionInfo(number=number, title="x" * 200, messages=1, updated_at=datetime.now(UTC), is_active=False)
        for number in range(1, 60)
    ]
    offered = session_choices({"options": [{"name": "number", "value": "", "focused": True}]}, sessions)
    assert len(offered) == 25
    assert all(len(choice["name"]) <= 100 for choice in offered)
    begun = session_choices({"options": [{"name": "number", "value": "5", "focused": True}]}, sessions)
    assert [choice["value"] for choice in begun] == [5, *range(50, 60)]

"""Slash commands, pressed buttons and completions: acknowledged at once, then taken like any message.

Discord waits three seconds for an answer. What it gets then is only "is thinking"; that goes away when the core has the
command, whose answer comes as any other message does: in order, and whatever crashes.
"""

import asyncio
import re
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

import structlog

from channels.discord.api import CHOICES, DEFERRED_MESSAGE, DEFERRED_UPDATE, EPHEMERAL, Api
from channels.discord.cache import place_of_interaction
from channels.discord.gateway_connection import Frame
from channels.discord.wire import BotIdentity, address_of, sender_of
from gateway.contract import Address, Browser, CommandInfo, Deliver, Inbound, Sender, SessionInfo, Verdict
from gateway.errors import ChannelError, Transient
from gateway.text import excerpt

log = structlog.get_logger()

Json = dict[str, Any]  # What Discord takes is of any shape.

SUBCOMMAND = 1
STRING = 3
INTEGER = 4
MAX_CHOICES = 25
WIDTH = 100
"""https://discord.com/developers/docs/interactions/application-commands#application-command-object"""

NUMBER = "number"
"""The argument that names a session; Discord completes it."""

_DEEPEST = 2
_NAME = re.compile(r"[a-z0-9_-]{1,32}")
_ARGUMENT = re.compile(r"(?P<bracket>[\[<])(?P<name>[a-z0-9_-]{1,32})[\]>]")
_COMPARED = ("type", "name", "description", "required", "autocomplete")


def menu(commands: Iterable[CommandInfo]) -> list[Json]:
    """Return the commands in Discord's words; a name of two words is a command and its subcommand."""
    commands = list(commands)
    groups = {command.name.partition(" ")[0] for command in commands if " " in command.name}
    entries: dict[str, Json] = {}
    for command in commands:
        name = _menu_name(command, groups)
        if name is None:
            continue
        first, _, second = name.partition(" ")
        described = {"description": excerpt(command.summary, WIDTH), "options": _options(command)}
        if second:
            group = entries.setdefault(first, {"type": 1, "name": first, "description": first.title(), "options": []})
            group["options"].append({"type": SUBCOMMAND, "name": second, **described})
        else:
            entries[first] = {"type": 1, "name": first, **described}
    return list(entries.values())


def _menu_name(command: CommandInfo, groups: AbstractSet[str]) -> str | None:
    """Find a name that Discord can hold. One with subcommands is no command itself, but an alias of it may be."""
    for name in (command.name, *command.aliases):
        words = name.split(" ")
        if len(words) <= _DEEPEST and all(map(_NAME.fullmatch, words)) and name not in groups:
            return name
    return None


def is_same(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether Discord has the commands as we want them; it adds fields of its own, and leaves out what is false."""
    return _essence(ours) == _essence(theirs)


def typed(data: Mapping[str, Any], commands: Iterable[CommandInfo]) -> str:
    """Return what the person would have typed for the command that was picked."""
    name, options = str(data["name"]), list(data.get("options") or ())
    if options and options[0].get("type") == SUBCOMMAND:
        name, options = f"{name} {options[0]['name']}", list(options[0].get("options") or ())
    called = [command for command in commands if name in (command.name, *command.aliases)]
    order = [argument["name"] for command in called for argument in _arguments(command)]
    given = {str(option["name"]): str(option.get("value", "")) for option in options}
    values = [given.pop(argument) for argument in order if argument in given]
    return " ".join([f"/{name}", *values, *given.values()]).strip()


def choices(data: Mapping[str, Any], sessions: Sequence[SessionInfo]) -> list[Json]:
    """Return the sessions that fit what has been typed of a number or of a title so far."""
    begun = _focused(data.get("options") or ()).casefold()
    fitting = [
        session for session in sessions if str(session.number).startswith(begun) or begun in session.title.casefold()
    ]
    return [
        {"name": excerpt(f"{session.number} {session.title or '(empty)'}", WIDTH), "value": session.number}
        for session in fitting[:MAX_CHOICES]
    ]


def _focused(options: Iterable[Mapping[str, Any]]) -> str:
    for option in options:
        if option.get("focused"):
            return str(option.get("value", ""))
        if inner := _focused(option.get("options") or ()):
            return inner
    return ""


def _options(command: CommandInfo) -> list[Json]:
    """Describe the arguments; Discord wants the required ones first."""
    options = [_option(argument) for argument in _arguments(command)]
    return sorted(options, key=lambda option: not option["required"])


def _option(argument: re.Match[str]) -> Json:
    name = argument["name"]
    is_number = name == NUMBER
    return {
        "type": INTEGER if is_number else STRING,
        "name": name,
        "description": "The session's number" if is_number else name.replace("_", " ").capitalize(),
        "required": argument["bracket"] == "<",
        "autocomplete": is_number,
    }


def _arguments(command: CommandInfo) -> Iterable[re.Match[str]]:
    return _ARGUMENT.finditer(command.arguments)


def _essence(entries: Sequence[Mapping[str, Any]]) -> object:
    """Reduce to what we set, in an order that does not depend on Discord's."""
    reduced = [
        ({key: entry[key] for key in _COMPARED if entry.get(key)}, _essence(entry.get("options") or ()))
        for entry in entries
    ]
    return sorted(reduced, key=lambda pair: str(pair[0]["name"]))


AT_ONCE = 64
"""Interactions that may be under way; of more, Discord says that there was no answer."""
STRANGE = (KeyError, TypeError, ValueError, AttributeError)
"""What reading raises that is newer than this code, and must not hold up the rest."""
STRANGER = "I do not answer you here. Ask my owner to let you in."
UNREADABLE = "This is out of date. Send the command instead; /help lists them."


class Kind(IntEnum):
    """https://discord.com/developers/docs/interactions/receiving-and-responding#interaction-object-interaction-type."""

    COMMAND = 2
    PRESS = 3
    COMPLETION = 4


class Interactions:
    """Its tasks live in `tasks`."""

    def __init__(self, api: Api, bot: BotIdentity, browser: Browser, tasks: asyncio.TaskGroup) -> None:
        self._api = api
        self._bot = bot
        self._browser = browser
        self._tasks = tasks
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def acknowledge(self, interaction: Frame) -> bool:
        """Answer at once, and tell whether there is something to `take`, which may be much later."""
        if len(self._under_way) >= AT_ONCE:
            log.warning("interaction_dropped", reason="too many at once")
            return False
        match interaction.get("type"):
            case Kind.COMMAND:
                self._start(interaction, self._api.answer(interaction, DEFERRED_MESSAGE, {"flags": EPHEMERAL}))
                return True
            case Kind.PRESS:
                self._start(interaction, self._api.answer(interaction, DEFERRED_UPDATE))
                return True
            case Kind.COMPLETION:
                self._start(interaction, self._complete(interaction))
        return False

    async def take(self, interaction: Frame, deliver: Deliver) -> None:
        """Hand the command to the core, and the person what there is to say if it was not taken."""
        try:
            inbound = self._read(interaction)
        except STRANGE as strange:
            log.warning("interaction_skipped", reason=f"it cannot be read ({type(strange).__name__})")
            inbound = None
        if inbound is None:
            self._finish(interaction, UNREADABLE)
            return
        try:
            verdict = await deliver(inbound)
        except Transient as trouble:  # It cannot be asked for again later, so whoever acted has to.
            self._finish(interaction, str(trouble))
        else:
            self._finish(interaction, STRANGER if verdict is Verdict.IGNORED else None)

    def _read(self, interaction: Frame) -> Inbound | None:
        """Read as if the person had typed it. Only a command is taken of what a button holds."""
        data = interaction.get("data") or {}
        is_press = interaction["type"] == Kind.PRESS
        text = str(data.get("custom_id", "")) if is_press else typed(data, self._browser.commands())
        if not text.startswith("/"):
            return None
        address, sender = self._who(interaction)
        message = interaction.get("message") or {}
        return Inbound(
            address=address,
            sender=sender,
            event_id=f"interaction:{interaction['id']}",
            text=text,
            sent_at=datetime.now(UTC),
            message_id=str(message["id"]) if is_press and "id" in message else None,
            guild=place_of_interaction(interaction).guild,
        )

    def _who(self, interaction: Frame) -> tuple[Address, Sender]:
        member = interaction.get("member")
        sender = sender_of((member or interaction)["user"], member)
        return address_of(place_of_interaction(interaction), sender.id, self._bot), sender

    async def _complete(self, interaction: Frame) -> None:
        address, sender = self._who(interaction)
        sessions = self._browser.sessions(address, sender, place_of_interaction(interaction).guild)
        fitting = choices(interaction.get("data") or {}, sessions)
        await self._api.answer(interaction, CHOICES, {"choices": fitting})

    def _finish(self, interaction: Frame, sentence: str | None) -> None:
        self._start(interaction, self._close(interaction, sentence, self._under_way.get(interaction["id"])))

    async def _close(self, interaction: Frame, sentence: str | None, acknowledged: asyncio.Task[None] | None) -> None:
        if acknowledged is not None:
            await acknowledged
        if sentence is not None:
            await self._api.tell(interaction, sentence)
        elif interaction["type"] == Kind.COMMAND:
            await self._api.clear(interaction)

    def _start(self, interaction: Frame, work: Coroutine[None, None, None]) -> None:
        name = str(interaction["id"])
        task = self._tasks.create_task(self._safely(work), name=f"interaction:{name}")
        self._under_way[name] = task
        task.add_done_callback(lambda done: self._forget(name, done))

    def _forget(self, name: str, done: asyncio.Task[None]) -> None:
        if self._under_way.get(name) is done:
            del self._under_way[name]

    async def _safely(self, work: Coroutine[None, None, None]) -> None:
        """Nothing else may end because an interaction could not be answered."""
        try:
            await work
        except ChannelError as trouble:
            log.info("interaction_not_answered", reason=str(trouble))
        except STRANGE as strange:
            log.warning("interaction_skipped", reason=f"it cannot be read ({type(strange).__name__})")

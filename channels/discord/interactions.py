"""Slash commands, pressed buttons and completions.

Discord waits three seconds for a response, so each interaction is acknowledged at once ("is thinking..."). The command
then goes to the core like any message, and the sender puts its answer below the command (`responses.py`). On a server,
only the person who sent a personal command sees it and its answer.
"""

import asyncio
import re
from collections.abc import Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from enum import IntEnum

import structlog

from channels.discord.api import CHOICES, DEFERRED_MESSAGE, DEFERRED_UPDATE, EPHEMERAL, DiscordApi
from channels.discord.responses import PREFIX, CommandResponses
from channels.discord.wire import UNREADABLE, DiscordBot, Json, address_of, chat_of_interaction, sender_of
from gateway.contract import Address, Browser, CommandInfo, Deliver, Inbound, Sender, SessionInfo, Verdict
from gateway.errors import ChannelError, Transient
from gateway.text import excerpt

log = structlog.get_logger()

MAX_PENDING = 64
"""Interactions handled at a time. Further ones are dropped; Discord then shows that the bot did not respond."""
NO_ACCESS = "I can't answer you here. Ask my owner to give you access."
OUT_OF_DATE = "This command is out of date. Type it instead; /help lists all commands."

# https://discord.com/developers/docs/interactions/application-commands#application-command-object
CHAT_INPUT = 1
SUBCOMMAND = 1
STRING = 3
INTEGER = 4
MAX_CHOICES = 25
MAX_CHARS = 100
MAX_NAME_WORDS = 2

SESSION_ARGUMENT = "number"
"""The argument that identifies a session; Discord completes it."""
_NAME = re.compile(r"[a-z0-9_-]{1,32}")
_ARGUMENT = re.compile(r"(?P<bracket>[\[<])(?P<name>[a-z0-9_-]{1,32})[\]>]")
_COMPARED_FIELDS = ("type", "name", "description", "required", "autocomplete")


class InteractionType(IntEnum):
    """https://discord.com/developers/docs/interactions/receiving-and-responding#interaction-object-interaction-type."""

    COMMAND = 2
    BUTTON = 3
    COMPLETION = 4


class Interactions:
    """Responds to interactions, in tasks of the group `tasks`."""

    def __init__(
        self,
        api: DiscordApi,
        bot: DiscordBot,
        browser: Browser,
        responses: CommandResponses,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._api = api
        self._bot = bot
        self._browser = browser
        self._responses = responses
        self._tasks = tasks
        self._pending: dict[str, asyncio.Task[None]] = {}  # The newest task of each interaction.

    def acknowledge(self, interaction: Json) -> bool:
        """Respond at once. Return whether the interaction also has to be handled, which may be much later."""
        if len(self._pending) >= MAX_PENDING:
            log.warning("interaction_dropped", reason="too many at once")
            return False
        match interaction.get("type"):
            case InteractionType.COMMAND:
                flags = {"flags": EPHEMERAL} if self._is_private(interaction) else None
                self._start(interaction, self._api.respond(interaction, DEFERRED_MESSAGE, flags))
                return True
            case InteractionType.BUTTON:
                self._start(interaction, self._api.respond(interaction, DEFERRED_UPDATE))
                return True
            case InteractionType.COMPLETION:
                self._start(interaction, self._complete(interaction))
        return False

    async def handle(self, interaction: Json, deliver: Deliver) -> None:
        """Hand the command to the core. If the core does not take it, tell the person why."""
        is_button = interaction["type"] == InteractionType.BUTTON
        message_id: str | None = None
        try:
            data = interaction.get("data") or {}
            text = str(data.get("custom_id", "")) if is_button else command_text(data, self._browser.commands())
            address, sender = self._origin(interaction)
            message = interaction.get("message") or {}
            if is_button:
                message_id = str(message["id"]) if "id" in message else None
            else:
                acknowledged = self._pending.get(str(interaction["id"]))
                is_private = self._is_private(interaction)
                message_id = self._responses.open(interaction, acknowledged, is_private=is_private)
                if self._responses.are_shared and acknowledged is not None:
                    # Another node may answer, and Discord takes nothing before the acknowledgement.
                    await asyncio.wait({acknowledged})
            inbound = Inbound(
                address=address,
                sender=sender,
                event_id=f"{PREFIX}{interaction['id']}",
                text=text,
                sent_at=datetime.now(UTC),
                message_id=message_id,
                guild=chat_of_interaction(interaction).guild,
            )
        except UNREADABLE as error:
            self._log_unreadable(error)
            inbound = None
        if inbound is None or not inbound.text.startswith("/"):  # An old button may hold anything.
            self._finish(interaction, OUT_OF_DATE)
            return
        try:
            verdict = await deliver(inbound)
        except Transient as error:  # An interaction cannot be fetched again later, so the person has to repeat it.
            self._finish(interaction, str(error))
        else:
            if verdict is Verdict.IGNORED:
                self._finish(interaction, NO_ACCESS)
            elif verdict is Verdict.DUPLICATE and self._responses.are_shared:
                # The node that received before has taken the command. Its answer may be there already.
                self._responses.forget(message_id)
            elif verdict is Verdict.DUPLICATE:
                self._finish(interaction, None)

    def _is_private(self, interaction: Json) -> bool:
        """Return whether only the person sees the command. In a direct chat, no one else could."""
        try:
            if chat_of_interaction(interaction).guild is None:
                return False
            name, _ = _name_and_options(interaction.get("data") or {})
        except UNREADABLE:
            return True
        called = (command for command in self._browser.commands() if name in (command.name, *command.aliases))
        return any(command.is_personal for command in called)

    async def _complete(self, interaction: Json) -> None:
        address, sender = self._origin(interaction)
        sessions = self._browser.sessions(address, sender, chat_of_interaction(interaction).guild)
        choices = session_choices(interaction.get("data") or {}, sessions)
        await self._api.respond(interaction, CHOICES, {"choices": choices})

    def _origin(self, interaction: Json) -> tuple[Address, Sender]:
        member = interaction.get("member")
        sender = sender_of((member or interaction)["user"], member)
        return address_of(chat_of_interaction(interaction), sender.id, self._bot), sender

    def _finish(self, interaction: Json, text: str | None) -> None:
        """Show `text` to the person who acted, and to no one else. Without a text, remove "is thinking..."."""
        self._responses.close(interaction)
        acknowledged = self._pending.get(str(interaction["id"]))
        is_command = interaction["type"] == InteractionType.COMMAND

        async def finish() -> None:
            if acknowledged is not None:  # Discord takes nothing else before the acknowledgement.
                await acknowledged
            # The first message after a public "is thinking..." would be public as well, so that goes first.
            if is_command and (text is None or not self._is_private(interaction)):
                await self._api.delete_deferred(interaction)
            if text is not None:
                await self._api.send_ephemeral(interaction, text)

        self._start(interaction, finish())

    def _start(self, interaction: Json, work: Coroutine[None, None, None]) -> None:
        key = str(interaction["id"])

        async def run() -> None:
            try:
                await work
            except ChannelError as error:  # A failed response must not end the channel.
                log.info("interaction_response_failed", reason=str(error))
            except UNREADABLE as error:
                self._log_unreadable(error)

        def forget(done: asyncio.Task[None]) -> None:
            if self._pending.get(key) is done:
                del self._pending[key]

        self._pending[key] = self._tasks.create_task(run(), name=f"interaction:{key}")
        self._pending[key].add_done_callback(forget)

    def _log_unreadable(self, error: Exception) -> None:
        log.warning("interaction_skipped", reason=f"unreadable payload ({type(error).__name__})")


def slash_commands(commands: Iterable[CommandInfo]) -> list[Json]:
    """Return the commands as Discord defines them. A name of two words becomes a command with a subcommand."""
    commands = list(commands)
    groups = {command.name.partition(" ")[0] for command in commands if " " in command.name}
    entries: dict[str, Json] = {}
    for command in commands:
        # Discord does not let a command with subcommands be used without one, so such a command goes by an alias.
        usable = (
            name
            for name in (command.name, *command.aliases)
            if name not in groups
            and len(name.split(" ")) <= MAX_NAME_WORDS
            and all(_NAME.fullmatch(word) for word in name.split(" "))
        )
        name = next(usable, None)
        if name is None:
            continue
        options = []
        for argument in _ARGUMENT.finditer(command.arguments):
            is_session = argument["name"] == SESSION_ARGUMENT
            label = argument["name"].replace("_", " ").capitalize()
            options.append(
                {
                    "type": INTEGER if is_session else STRING,
                    "name": argument["name"],
                    "description": "The session's number" if is_session else label,
                    "required": argument["bracket"] == "<",
                    "autocomplete": is_session,
                }
            )
        options.sort(key=lambda option: not option["required"])  # Discord requires this order.
        entry = {"description": excerpt(command.summary, MAX_CHARS), "options": options}
        first, _, second = name.partition(" ")
        if second:
            group = {"type": CHAT_INPUT, "name": first, "description": first.title(), "options": []}
            entries.setdefault(first, group)["options"].append({"type": SUBCOMMAND, "name": second, **entry})
        else:
            entries[first] = {"type": CHAT_INPUT, "name": first, **entry}
    return list(entries.values())


def are_same_commands(ours: Sequence[Json], theirs: Sequence[Json]) -> bool:
    """Compare only the fields that we set. Discord adds others, leaves out false values and changes the order."""
    return _comparable(ours) == _comparable(theirs)


def _comparable(entries: Sequence[Json]) -> object:
    reduced = [
        ({key: entry[key] for key in _COMPARED_FIELDS if entry.get(key)}, _comparable(entry.get("options") or ()))
        for entry in entries
    ]
    return sorted(reduced, key=lambda pair: str(pair[0]["name"]))


def command_text(data: Json, commands: Iterable[CommandInfo]) -> str:
    """Return the text that a person would type for a slash command."""
    name, options = _name_and_options(data)
    called = [command for command in commands if name in (command.name, *command.aliases)]
    order = [argument["name"] for command in called for argument in _ARGUMENT.finditer(command.arguments)]
    given = {str(option["name"]): str(option.get("value", "")) for option in options}
    values = [given.pop(argument) for argument in order if argument in given]
    return " ".join([f"/{name}", *values, *given.values()]).strip()


def _name_and_options(data: Json) -> tuple[str, list[Json]]:
    """Return the name of a slash command, of one or two words, and its arguments."""
    name, options = str(data["name"]), list(data.get("options") or ())
    if options and options[0].get("type") == SUBCOMMAND:
        return f"{name} {options[0]['name']}", list(options[0].get("options") or ())
    return name, options


def session_choices(data: Json, sessions: Sequence[SessionInfo]) -> list[Json]:
    """Return the sessions whose number or title matches the characters typed so far."""
    typed = _focused_value(data.get("options") or ()).casefold()
    matches = [
        session for session in sessions if str(session.number).startswith(typed) or typed in session.title.casefold()
    ]
    return [
        {"name": excerpt(f"{session.number} {session.title or '(empty)'}", MAX_CHARS), "value": session.number}
        for session in matches[:MAX_CHOICES]
    ]


def _focused_value(options: Iterable[Json]) -> str:
    """Return the value of the option that is being typed. Options of a subcommand are nested."""
    for option in options:
        if option.get("focused"):
            return str(option.get("value", ""))
        if nested := _focused_value(option.get("options") or ()):
            return nested
    return ""

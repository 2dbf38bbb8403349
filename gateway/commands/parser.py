"""Parses a message as a command. Pure: the registry and a message in, a value out."""

import difflib
import re

from msgspec import Struct

from gateway.commands.command import Command
from gateway.commands.registry import BY_NAME
from gateway.contract import Inbound

# A command is one or two words of letters; `/etc/hosts` and `/2` are plain text. Group chats append `@botname`.
_COMMAND = re.compile(r"(?P<mark>[/!])(?P<name>[a-z]+)(?:@\w+)?(?:\s+(?P<rest>.*))?", re.IGNORECASE | re.DOTALL)


class ParsedCommand(Struct, frozen=True):
    command: Command
    argument: str


class UnknownCommand(Struct, frozen=True):
    suggestion: str
    """A sentence for the person who sent it."""


def parse_message(inbound: Inbound) -> ParsedCommand | UnknownCommand | None:
    """Return the command in a message; None if it is meant for the agent."""
    return None if inbound.is_prompt else parse_command(inbound.text)


def parse_command(text: str) -> ParsedCommand | UnknownCommand | None:
    """Return the command in `text`; None if the text is meant for the agent.

    `//text` sends `/text` to the agent. `!` works like `/`, but an unknown `!word` is text for the agent.
    """
    stripped = text.strip()
    match = None if stripped.startswith("//") else _COMMAND.fullmatch(stripped)
    if match is None:
        return None
    name, rest = match["name"].lower(), (match["rest"] or "").strip()
    first, _, after = rest.partition(" ")
    if (command := BY_NAME.get(f"{name} {first.lower()}")) is not None:
        return ParsedCommand(command, after.strip())
    # `/session foo` is a wrong subcommand, not `/session` with the argument `foo`.
    has_subcommands = bool(first) and any(known.startswith(f"{name} ") for known in BY_NAME)
    if (command := BY_NAME.get(name)) is not None and not has_subcommands:
        return ParsedCommand(command, rest)
    # Many people write `!important`. `/` at the start is rarely anything but a command.
    if match["mark"] == "!":
        return None
    wrong = f"{name} {first}" if has_subcommands else name
    near = difflib.get_close_matches(wrong.lower(), BY_NAME, n=1)
    hint = f"Did you mean /{near[0]}?" if near else "/help lists the commands."
    return UnknownCommand(f"There is no command /{wrong}. {hint} To send it to the agent as text, write //{wrong}.")

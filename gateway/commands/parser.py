"""Reads a message as a command, as a mistyped one, or as something said to the agent. Pure."""

import difflib
import re
from collections.abc import Sequence

from msgspec import Struct

from gateway.commands.command import Command

__all__ = ["Asked", "Mistyped", "Said", "read"]

# A command is one or two words of letters; `/etc/hosts` and `/2` are just text. `@botname` comes from group chats.
_COMMAND = re.compile(r"(?P<mark>[/!])(?P<name>[a-z]+)(?:@\w+)?(?:\s+(?P<rest>.*))?", re.IGNORECASE | re.DOTALL)


class Asked(Struct, frozen=True):
    command: Command
    argument: str


class Mistyped(Struct, frozen=True):
    sentence: str


class Said(Struct, frozen=True):
    """Not a command: the agent gets it."""


def read(text: str, commands: Sequence[Command]) -> Asked | Mistyped | Said:
    """`//text` is a way to say `/text` to the agent; `!` works as `/`, but an unknown `!word` is just said."""
    stripped = text.strip()
    if stripped.startswith("//"):
        return Said()
    match = _COMMAND.fullmatch(stripped)
    if match is None:
        return Said()
    name, rest = match["name"].lower(), (match["rest"] or "").strip()
    known = {word: command for command in commands for word in (command.name, *command.aliases)}
    first, _, after = rest.partition(" ")
    if (command := known.get(f"{name} {first.lower()}")) is not None:
        return Asked(command, after.strip())
    if (command := known.get(name)) is not None and not _has_subcommands(name, first, known):
        return Asked(command, rest)
    if match["mark"] == "!":
        return Said()
    return Mistyped(_suggestion(f"{name} {first}" if _has_subcommands(name, first, known) else name, known))


def _has_subcommands(name: str, first: str, known: dict[str, Command]) -> bool:
    return bool(first) and any(word.startswith(f"{name} ") for word in known)


def _suggestion(wrong: str, known: dict[str, Command]) -> str:
    near = difflib.get_close_matches(wrong.lower(), known, n=1)
    hint = f"Did you mean /{near[0]}?" if near else "/help lists the commands."
    return f"There is no command /{wrong}. {hint} To send it to the agent as text, write //{wrong}."

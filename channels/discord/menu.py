"""The commands as Discord's slash commands: one registry in, and what a person picked and filled in back out. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from gateway.contract import CommandInfo, SessionInfo
from gateway.text import excerpt

__all__ = ["choices", "is_same", "menu", "typed"]

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

"""The reference of commands: those of chats from their registry, and those of the shell from their `--help`."""

import io
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout

from gateway import cli
from gateway.commands.registry import COMMANDS
from website.json_schema import cell

_HAS_SUBCOMMANDS = re.compile(r"^  (COMMAND|ACTION)$", re.MULTILINE)
_SUBCOMMAND = re.compile(r"^    ([a-z][a-z-]*)(?:  |$)", re.MULTILINE)
INTRODUCTION = """\
# Commands

## In chats

They work on every channel. `!` works like `/`, and case doesn't matter. *Owner* marks those for owners; a
[role](../docs/roles.md) can grant them.

| command | also | effect | |
|---|---|---|---|"""


def commands_page() -> str:
    os.environ["COLUMNS"] = "100"  # The width of the help that argparse writes.
    lines = [INTRODUCTION]
    for command in COMMANDS:
        also = ", ".join(f"`/{alias}`" for alias in command.aliases)
        usage = cell(f"/{command.name} {command.arguments}".strip()).replace("&lt;", "<")
        lines.append(f"| `{usage}` | {also} | {cell(command.summary)} | {'owner' if command.is_for_owners else ''} |")
    lines.append("\n## In the shell\n")
    lines.append("```text\n" + _help() + "```\n")
    for name, (_, summary) in cli.COMMANDS.items():
        lines.append(f"### gatehouse {name}\n\n{summary[:1].upper()}{summary[1:]}.\n")
        lines += _usage(name)
    return "\n".join(lines)


def _usage(name: str) -> Iterator[str]:
    """Yield the help of a command and of its subcommands."""
    text = _help(name)
    yield f"```text\n{text}```\n"
    if _HAS_SUBCOMMANDS.search(text):
        for subcommand in _SUBCOMMAND.findall(text):
            yield f"```text\n{_help(name, subcommand)}```\n"


def _help(*arguments: str) -> str:
    output = io.StringIO()
    with redirect_stdout(output):
        cli.main([*arguments, "--help"])
    return output.getvalue()

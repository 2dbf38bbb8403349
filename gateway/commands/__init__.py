"""The commands people can send in a chat: one registry feeds the parser, `/help` and every platform's menu."""

from gateway.commands.command import Answer, Call, Command, Desk, Kind
from gateway.commands.general import HELP, STATUS, STOP, WHOAMI
from gateway.commands.grammar import Asked, Mistyped, Said, read
from gateway.commands.sessions import HISTORY, LIST, NEW, RESUME

__all__ = ["COMMANDS", "Answer", "Asked", "Call", "Command", "Desk", "Kind", "Mistyped", "Said", "read"]

COMMANDS: tuple[Command, ...] = (NEW, LIST, RESUME, HISTORY, STOP, STATUS, WHOAMI, HELP)

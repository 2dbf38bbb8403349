"""The commands people can send in a chat: one registry feeds the parser, `/help` and every platform's menu."""

from gateway.commands.agents import AGENT, COMPACT, MODEL, TOOLS, WORKSPACE
from gateway.commands.approvals import APPROVE, DENY
from gateway.commands.command import Answer, Call, Command, Desk, Kind
from gateway.commands.history import CLEAR, HISTORY, RETRY, UNDO
from gateway.commands.info import HELP, RESTART, RESTARTED_BY, STATUS, STOP, USAGE, WHOAMI
from gateway.commands.pairing import PAIR, PAIR_APPROVE, PAIR_DENY, PAIR_REVOKE
from gateway.commands.parser import Asked, Mistyped, Said, read
from gateway.commands.reminders import REMINDERS, REMINDERS_CANCEL
from gateway.commands.sessions import CLOSE, DELETE, EXPORT, INFO, LIST, NEW, RENAME, RESUME, SEARCH

__all__ = [
    "APPROVE",
    "COMMANDS",
    "DENY",
    "RESTARTED_BY",
    "RETRY",
    "Answer",
    "Asked",
    "Call",
    "Command",
    "Desk",
    "Kind",
    "Mistyped",
    "Said",
    "read",
]

COMMANDS: tuple[Command, ...] = (
    NEW,
    LIST,
    RESUME,
    RENAME,
    CLOSE,
    DELETE,
    SEARCH,
    INFO,
    EXPORT,
    HISTORY,
    CLEAR,
    UNDO,
    RETRY,
    COMPACT,
    AGENT,
    MODEL,
    WORKSPACE,
    TOOLS,
    REMINDERS,
    REMINDERS_CANCEL,
    APPROVE,
    DENY,
    STOP,
    STATUS,
    USAGE,
    WHOAMI,
    PAIR,
    PAIR_APPROVE,
    PAIR_DENY,
    PAIR_REVOKE,
    RESTART,
    HELP,
)

"""The commands people can send in a chat: one registry feeds the parser, `/help` and every platform's menu."""

from gateway.commands.approvals import APPROVE, DENY
from gateway.commands.command import Answer, Call, Command, Desk, Kind
from gateway.commands.general import HELP, RESTART, RESTARTED_BY, STOP, WHOAMI
from gateway.commands.grammar import Asked, Mistyped, Said, read
from gateway.commands.history import CLEAR, HISTORY, RETRY, UNDO
from gateway.commands.models import AGENT, COMPACT, MODEL
from gateway.commands.pairing import PAIR, PAIR_APPROVE, PAIR_DENY, PAIR_REVOKE
from gateway.commands.reminders import REMINDERS, REMINDERS_CANCEL
from gateway.commands.sessions import LIST, NEW, RESUME
from gateway.commands.tools import TOOLS
from gateway.commands.upkeep import CLOSE, DELETE, EXPORT, INFO, RENAME, SEARCH
from gateway.commands.usage import STATUS, USAGE
from gateway.commands.workspaces import WORKSPACE

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

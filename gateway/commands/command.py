"""A command, the call that its handler gets, and the answer that it returns."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from gateway.access.rights import Action
from gateway.contract import Button, Enclosure, Inbound, Outbound
from gateway.errors import Refused
from gateway.routing import Routed
from gateway.spool import Operation


class CommandKind(StrEnum):
    """When a command runs."""

    IMMEDIATE = "immediate"
    """At intake, even while a turn is running. It only looks at memory or the spool."""
    ORDERED = "ordered"
    """At intake, in the order of acceptance: later messages of the chat see its effect."""
    READING = "reading"
    """In a lane beside the turns, because it reads transcripts and may take a while."""
    QUEUED = "queued"
    """In the session's lane, after the turns before it."""


class Command(Struct, frozen=True, kw_only=True):
    """A command as people see it. `name` may be two words (`session list`). Its handler is found by the name."""

    name: str
    summary: str
    kind: CommandKind = CommandKind.IMMEDIATE
    arguments: str = ""
    aliases: tuple[str, ...] = ()
    is_long: bool = False
    """It waits for a model."""
    is_personal: bool = False
    """Its answer is of interest only to the person who sent it. Channels that can, show it to them only."""
    is_for_owners: bool = False
    """Only owners may use it, and people whose role grants it. Its summary says so."""
    right: Action | None = None
    """What it does to a scope. In some scopes, only owners may do that."""

    @property
    def can_be_stopped(self) -> bool:
        """Whether `/stop` cancels it. If the daemon ends first, it runs again after the next start."""
        return self.is_long or self.kind is CommandKind.READING


class Call(Struct, frozen=True, kw_only=True):
    """A command as it was sent, and the scope that it may touch."""

    inbound: Inbound
    routed: Routed
    session: str | None
    """The key of the session that was active when the command was accepted."""
    argument: str
    is_owner: bool
    is_granted: bool = False
    """For a command for owners: the sender is one, or has a role that grants it. `CommandRunner` sets it."""
    is_queued: bool = False
    """It has waited in a lane, so messages of the chat may be accepted while it runs."""


Commit = Callable[[Sequence[Operation]], Awaitable[object]]
"""Makes a change in one transaction with the given operations. Raises if nothing was committed."""


class Answer(Struct, frozen=True, kw_only=True):
    """The text and the changes of a command. Nothing has happened yet: `CommandRunner` commits it.

    One transaction marks the command's message as done, puts the answer into the outbox and applies `operations`. A
    command that changes more than the spool, or acts once it is committed, has its own `commit` for that transaction.

    The text is plain: no channel renders Markdown in it.
    """

    text: str
    buttons: tuple[Button, ...] = ()
    operations: tuple[Operation, ...] = ()
    other_chats: tuple[Outbound, ...] = ()
    """Messages to other chats that the command concerns."""
    unanswered: tuple[str, ...] = ()
    """The ids of messages of this chat that the command has dropped."""
    is_failure: bool = False
    """The text says why nothing has happened."""
    commit: Commit | None = None
    files: tuple[Enclosure, ...] = ()
    """Files that follow the text."""


Handler = Callable[[Call], Awaitable[Answer]]
"""Runs a command. Raises `Refused` with a sentence that says what to do instead."""

Handlers = Mapping[str, Handler]
"""Handlers by the name of their command."""

NO_SESSION = "There is no session here yet. Send a message to start one."
_MAX_DIGITS = 9


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def parse_number(argument: str, example: str, *, shown_by: str = "/session list") -> int:
    """Return the number. Raises `Refused` with the `example` of how to write it, and the command that shows it."""
    if not is_number(argument):
        raise Refused(f"Which one? Add its number, like {example}. {shown_by} shows the numbers.")
    return int(argument)

"""What a command is, what it is called with and what it answers."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gateway.access.live import Live
from gateway.access.pairing import Pairing
from gateway.contract import Button, Inbound, Outbound
from gateway.errors import Refused
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.mcp.registry import McpServers
from gateway.reminders.reminders import Reminders
from gateway.routing import Routed
from gateway.sessions import SessionManager
from gateway.spool import Operation, UsageTotal
from gateway.turns.agents import AgentRegistry
from gateway.turns.approvals import Approvals
from gateway.turns.compaction import Compactor
from gateway.turns.usage import Meter


class Kind(StrEnum):
    LOOK = "look"
    """Runs at once, even while a turn is running: it only looks at what is in memory or in the spool."""
    READING = "reading"
    """Reads transcripts, which may take a while: it waits for others of its kind, and for no turn."""
    STRUCTURAL = "structural"
    """Takes effect at intake, in order of acceptance: later messages go to the new session."""
    QUEUED = "queued"
    """Waits in the lane for the turns before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What the gateway lets commands use."""

    sessions: SessionManager
    lanes: Lanes[Job]
    """Those of the sessions."""
    readings: Lanes[Job]
    """Commands that read transcripts, by the scope: they wait for each other, and for no turn."""
    approvals: Approvals
    pairing: Pairing
    live: Live
    agents: AgentRegistry
    mcp: McpServers
    meter: Meter
    reminders: Reminders
    compactions: Compactor
    commands: Sequence["Command"]
    status: Callable[[], str]
    restart: Callable[[], None]
    now: Callable[[], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One command as it was sent, with the scope it may touch.

    `session` is the key of the session it is about: the active one, or the one that was active when it was accepted.
    """

    inbound: Inbound
    routed: Routed
    session: str | None
    argument: str
    is_owner: bool
    desk: Desk
    settle: Callable[["Answer"], Sequence[Operation]]
    """Makes operations of an answer, for a command that commits its answer together with what it changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`also` is committed together with it, and so is what is said in other chats.

    `then` is called once it is, `otherwise` when it could not be.
    """

    text: str
    buttons: tuple[Button, ...] = ()
    also: tuple[Operation, ...] = ()
    notices: tuple[Outbound, ...] = ()
    then: Callable[[], None] | None = None
    otherwise: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """`name` may be two words (`session list`). `run` raises `Refused` with a sentence that says what to do."""

    name: str
    summary: str
    run: Callable[[Call], Awaitable[Answer]]
    kind: Kind = Kind.LOOK
    arguments: str = ""
    aliases: tuple[str, ...] = ()
    is_long: bool = False
    """It waits for others: until it has its answer it can be stopped, and after a restart it is done again."""

    @property
    def can_be_stopped(self) -> bool:
        return self.is_long or self.kind is Kind.READING


_MOST_DIGITS = 9


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def read_number(argument: str, example: str) -> int:
    """Return the number, or refuse with the `example` of how to write it."""
    if not is_number(argument):
        raise Refused(f"Which one? Send its number, like {example}. /session list shows the numbers.")
    return int(argument)


NO_SESSION = "There is no session here yet. Write something to start the first one."

_CENT = 0.01


def spent_in_words(spent: UsageTotal) -> str:
    """Tell tokens, and the cost where there is one, in whatever currency prices are given in."""
    cached = f" ({spent.cached_tokens:,} from a cache)" if spent.cached_tokens else ""
    cost = spent.cost_micros / 1_000_000
    price = f", cost {cost:.2f}" if cost >= _CENT else f", cost {cost:.4f}"
    return f"{spent.input_tokens:,} tokens read{cached}, {spent.output_tokens:,} written{price if cost else ''}"

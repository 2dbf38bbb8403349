"""What is told to Prometheus: the names that alert rules and dashboards rely on."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from itertools import product

from aiohttp import web

from gateway import __version__
from gateway.contract import Access, Caller, Route, Verdict
from gateway.http.guard import IS_PROXIED
from gateway.http.responses import Refusal
from gateway.metrics import DEAD, DELIVERED, Histogram, Tally
from gateway.observability.status import Reading, Vitals
from gateway.sessions import TurnOutcome
from gateway.spool import InboxState, OutboxState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric: its name, what it says, and its lines without the name before them."""

    name: str
    kind: str
    help: str
    lines: tuple[str, ...]


def gauge(name: str, help_: str, values: Mapping[Labels, float] | float, labels: Labels = ()) -> Family:
    """`values` are by the values of `labels`, in their order; a number where there are none."""
    return Family(name=name, kind="gauge", help=help_, lines=tuple(_lines(values, labels)))


def counter(name: str, help_: str, values: Mapping[Labels, float] | float, labels: Labels = ()) -> Family:
    return Family(name=name, kind="counter", help=help_, lines=tuple(_lines(values, labels)))


def histogram(name: str, help_: str, values: Mapping[Labels, Histogram], labels: Labels = ()) -> Family:
    lines = (
        line for key, each in values.items() for line in _histogram_lines(each, tuple(zip(labels, key, strict=True)))
    )
    return Family(name=name, kind="histogram", help=help_, lines=tuple(lines))


def render(families: Iterable[Family]) -> str:
    return "".join(line for family in families for line in _rendered(family))


def _rendered(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}\n"
    yield f"# TYPE {family.name} {family.kind}\n"
    for line in family.lines:
        yield f"{family.name}{line}\n"


def _lines(values: Mapping[Labels, float] | float, labels: Labels) -> Iterator[str]:
    if not isinstance(values, Mapping):
        values = {(): values}
    for key, value in values.items():
        yield f"{_braced(tuple(zip(labels, key, strict=True)))} {_number(value)}"


def _histogram_lines(each: Histogram, labels: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for bound, count in each.cumulative():
        yield f"_bucket{_braced((*labels, ('le', _number(bound))))} {count}"
    yield f"_sum{_braced(labels)} {_number(each.total)}"
    yield f"_count{_braced(labels)} {each.count}"


def _braced(labels: tuple[tuple[str, str], ...]) -> str:
    inside = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(value) if isinstance(value, int) else repr(float(value))


_Counted = Mapping[tuple[str, ...], float]

_OUTCOMES = (*TurnOutcome, InboxState.ABANDONED, InboxState.DEAD)
_UNFINISHED_MESSAGES = tuple(set(InboxState) - {InboxState.ANSWERED, InboxState.ABANDONED})
_UNFINISHED_REPLIES = tuple(set(OutboxState) - {OutboxState.DELIVERED})
_MILLION = 1_000_000


def families(tally: Tally, reading: Reading) -> Iterator[Family]:
    channels = sorted({channel.name for channel in reading.health.channels})
    yield from _of_health(tally, reading)
    yield from _of_messages(tally, channels)
    yield from _of_models(tally)
    yield from _of_work(tally, reading)
    yield from _of_storage(tally, reading)
    yield from _of_process(reading)


def _of_health(tally: Tally, reading: Reading) -> Iterator[Family]:
    health = reading.health
    by = ("channel", "account")
    up: dict[tuple[str, ...], float] = {(each.name, each.account): int(each.state == "up") for each in health.channels}
    yield gauge("gatehouse_build_info", "The version that is running.", {(__version__,): 1}, ("version",))
    yield gauge("gatehouse_start_time_seconds", "When the gateway was started.", reading.started_at.timestamp())
    yield gauge(
        "gatehouse_ready", "Whether every channel is up and nothing is in the way of messages.", int(health.ready)
    )
    yield gauge("gatehouse_degraded", "Whether something is wrong that messages survive.", int(bool(health.warnings)))
    yield gauge("gatehouse_channel_up", "Whether a channel can reach its platform.", up, by)
    yield gauge(
        "gatehouse_channel_last_event_timestamp_seconds",
        "When a channel was last heard from.",
        {key: at for key, at in tally.last_events.items() if key in up},
        by,
    )


def _of_messages(tally: Tally, channels: list[str]) -> Iterator[Family]:
    yield counter(
        "gatehouse_messages_received_total",
        "Messages that came in, by what became of them at the door.",
        _all(tally.received, channels, Verdict),
        ("channel", "verdict"),
    )
    yield counter(
        "gatehouse_messages_settled_total",
        "Accepted messages by how they ended; commands are counted apart.",
        _all(tally.settled, channels, _OUTCOMES),
        ("channel", "outcome"),
    )
    yield counter("gatehouse_commands_total", "Commands that were obeyed.", tally.commands, ("channel", "command"))
    yield counter(
        "gatehouse_replies_total",
        "Parts of replies that have arrived in their chats, and those that were set aside.",
        _all(tally.replies, channels, (DELIVERED, DEAD)),
        ("channel", "outcome"),
    )
    yield histogram(
        "gatehouse_turn_seconds", "From the start of a turn until its answer is fixed.", tally.turns, ("channel",)
    )


def _of_models(tally: Tally) -> Iterator[Family]:
    cost = {key: micros / _MILLION for key, micros in tally.cost_micros.items()}
    yield counter(
        "gatehouse_model_requests_total", "Requests to models, by how they ended.", tally.requests, ("model", "outcome")
    )
    yield histogram(
        "gatehouse_model_request_seconds",
        "Until a model's answer was whole, with the waits before it was asked again.",
        tally.answers,
        ("model",),
    )
    yield histogram(
        "gatehouse_model_first_token_seconds", "Until a model began to answer.", tally.first_words, ("model",)
    )
    yield counter(
        "gatehouse_tokens_total",
        "Tokens read and written; those from a cache are input too.",
        tally.tokens,
        ("model", "kind"),
    )
    yield counter("gatehouse_cost_total", "What models have cost, in the currency of their prices.", cost, ("model",))


def _of_work(tally: Tally, reading: Reading) -> Iterator[Family]:
    oldest = max((each.seconds for each in reading.running), default=0.0)
    yield gauge("gatehouse_queue_messages", "Messages that wait for their turn.", reading.messages_waiting)
    yield gauge("gatehouse_queue_limit", "How many may wait before more are refused.", reading.max_waiting or 0)
    yield gauge("gatehouse_turns_running", "Turns and commands at work.", reading.turns_running)
    yield gauge("gatehouse_turns_awaiting_approval", "Turns that wait for a person.", reading.turns_resting)
    yield gauge("gatehouse_turn_oldest_seconds", "For how long the oldest turn has been at it.", oldest)
    yield gauge("gatehouse_replies_waiting", "Parts of replies on their way to a chat.", reading.replies_waiting)
    yield histogram("gatehouse_event_loop_lag_seconds", "How late the event loop was, by samples.", {(): tally.lag})


def _of_storage(tally: Tally, reading: Reading) -> Iterator[Family]:
    yield gauge("gatehouse_sessions", "Conversations that are kept.", reading.sessions)
    yield gauge("gatehouse_scopes", "Scopes that have conversations.", reading.scopes)
    yield histogram("gatehouse_flush_seconds", "How long making conversations durable took.", {(): tally.flushes})
    yield gauge("gatehouse_flush_age_seconds", "Since a flush has worked.", reading.flush_age)
    yield counter("gatehouse_flush_failures_total", "Flushes that did not work.", reading.flush_failures)
    yield gauge("gatehouse_spool_busy_seconds", "For how long the commit at hand has taken.", reading.spool_busy_for)
    yield counter("gatehouse_spool_transactions_total", "Commits to the spool.", reading.spool_transactions)
    if reading.spool is not None:
        inbox: _Counted = {(state,): reading.spool.inbox.get(state, 0) for state in sorted(_UNFINISHED_MESSAGES)}
        outbox: _Counted = {(state,): reading.spool.outbox.get(state, 0) for state in sorted(_UNFINISHED_REPLIES)}
        yield gauge("gatehouse_spool_messages", "Messages that are not settled, and dead ones.", inbox, ("state",))
        yield gauge("gatehouse_spool_replies", "Replies that have not arrived, and dead ones.", outbox, ("state",))
        yield gauge(
            "gatehouse_spool_bytes",
            "The size of the spool, without the room that its log always has.",
            reading.spool.file_bytes,
        )
    if reading.disk_free_bytes is not None:
        yield gauge("gatehouse_disk_free_bytes", "Free on the disk of the data directory.", reading.disk_free_bytes)


def _of_process(reading: Reading) -> Iterator[Family]:
    """Name these as the official clients do: dashboards for any process know them."""
    yield gauge("process_resident_memory_bytes", "Resident memory size in bytes.", reading.memory_bytes)
    yield gauge("process_open_fds", "Number of open file descriptors.", reading.open_files)
    yield counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", reading.cpu_seconds)


def _all(counted: Counter[tuple[str, ...]], channels: Iterable[str], outcomes: Iterable[str]) -> _Counted:
    """Also tell what has not happened yet: the first of its kind would otherwise be no increase."""
    return {**dict.fromkeys(product(channels, outcomes), 0), **counted}


class Metrics:
    def __init__(self, vitals: Vitals, tally: Tally, *, is_open: bool) -> None:
        self._vitals = vitals
        self._tally = tally
        self._is_open = is_open

    def routes(self) -> list[Route]:
        access = Access.PUBLIC if self._is_open else Access.OWNER
        return [Route(method="GET", path="/metrics", access=access, handle=self._answer)]

    async def _answer(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        if request[IS_PROXIED] and not caller.is_owner:
            raise Refusal(
                HTTPStatus.UNAUTHORIZED,
                "Through a proxy this needs the token: send the header `Authorization: Bearer <token>`.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        text = render(families(self._tally, await self._vitals.take()))
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

"""Traces: the way of a message as spans. `observability/span_exporter.py` sends them to an OpenTelemetry collector.

The id of a trace is the id of the turn, which the spool has. So a trace goes on after a crash, and log lines with the
same `turn` belong to it. No attribute has a text, a person or a chat.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum
from os import urandom
from time import time_ns
from types import TracebackType
from typing import NamedTuple, Self

from msgspec import Struct

from gateway.bounded import BoundedDict
from gateway.job import Job

Value = str | bool | int | float
TRACE_DIGITS = 32
SPAN_ID_BYTES = 8
_MAX_ACCEPTED = 10_000
"""Accepted messages whose times are remembered until their turns end. It is more than may wait at all."""
SUSPENDED = "suspended"
"""The outcome of a turn that goes on after the next start."""


class SpanKind(IntEnum):
    """The numbers of the protocol."""

    INTERNAL = 1
    CLIENT = 3
    CONSUMER = 5


class Span(Struct, frozen=True, kw_only=True):
    """One finished part of a message's way. Times are nanoseconds since 1970."""

    name: str
    trace: str
    """The id of the turn: 32 hexadecimal digits."""
    id: bytes
    parent: bytes
    """Empty for the root."""
    started: int
    ended: int
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Mapping[str, Value] = {}
    is_failure: bool = False
    links: tuple[str, ...] = ()
    """The traces of other messages that the same turn answers."""


def root_id(trace: str) -> bytes:
    """Return the id of the root span of a trace. It is always the same, so spans after a crash have it as parent."""
    return bytes.fromhex(trace)[-SPAN_ID_BYTES:]


class _Times(NamedTuple):
    received: int
    accepted: int


class OpenSpan:
    """A span that has begun. Use it in a `with` statement, or call `end`."""

    __slots__ = ("_attributes", "_export", "_id", "_is_failure", "_kind", "_name", "_parent", "_started", "_trace")

    def __init__(
        self,
        export: Callable[[Span], None],
        name: str,
        *,
        trace: str,
        parent: bytes,
        kind: SpanKind = SpanKind.INTERNAL,
        started: int = 0,
        attributes: Mapping[str, Value] | None = None,
    ) -> None:
        self._export = export
        self._name = name
        self._trace = trace
        self._id = urandom(SPAN_ID_BYTES)
        self._parent = parent
        self._kind = kind
        self._started = started or time_ns()
        self._attributes = dict(attributes or {})
        self._is_failure = False

    def fail(self, reason: str) -> None:
        """Mark the span as failed. `reason` is a word of ours or the name of an exception, never a text."""
        self._is_failure = True
        self._attributes["error.type"] = reason

    def set(self, **attributes: Value) -> None:
        """Set attributes of ours. Their names get the prefix `gatehouse.`."""
        self._attributes.update({f"gatehouse.{name}": value for name, value in attributes.items()})

    def end(self, attributes: Mapping[str, Value] | None = None) -> None:
        self._export(
            Span(
                name=self._name,
                trace=self._trace,
                id=self._id,
                parent=self._parent,
                started=self._started,
                ended=max(time_ns(), self._started),  # The clock may have been set back.
                kind=self._kind,
                attributes={**self._attributes, **(attributes or {})},
                is_failure=self._is_failure,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.fail(kind.__name__)
        self.end()


class NoSpan:
    """Stands for the spans of everything that is not traced."""

    __slots__ = ()

    def fail(self, reason: str) -> None: ...

    def set(self, **attributes: Value) -> None: ...

    def end(self, attributes: Mapping[str, Value] | None = None) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


NO_SPAN = NoSpan()


class Trace:
    """The trace of a job while it runs. It becomes the `turn` span, and the root span of each message that it ends."""

    def __init__(self, tracer: "Tracer", job: Job) -> None:
        self.tracer = tracer
        self._job = job
        self._started = time_ns()
        self.id = urandom(SPAN_ID_BYTES)
        """The id of the span of the turn, or of the command."""
        self._outcomes: dict[str, tuple[Job, str, bool]] = {}
        """The messages that have ended, with how they ended and whether that is a failure, by their turns."""
        self._attributes: dict[str, Value] = {}

    @property
    def turn(self) -> str:
        return self._job.turn

    def open(self, name: str, kind: SpanKind, attributes: Mapping[str, Value]) -> OpenSpan:
        export = self.tracer.export
        return OpenSpan(export, name, trace=self.turn, parent=self.id, kind=kind, attributes=attributes)

    def settle(self, jobs: Iterable[Job], outcome: str, *, is_failure: bool, **attributes: Value) -> None:
        """Note how messages have ended. `attributes` are about the turn that has ended them."""
        for job in jobs:
            self._outcomes[job.turn] = (job, outcome, is_failure)
        self._attributes.update({f"gatehouse.{name}": value for name, value in attributes.items()})

    def end(self) -> None:
        """Export the span of the turn or command, and the root spans of the messages that it has ended."""
        job, tracer = self._job, self.tracer
        _, outcome, is_failure = self._outcomes.get(job.turn, (job, SUSPENDED, False))
        is_turn = job.command is None or bool(self._attributes)  # A /retry becomes a turn.
        tracer.export(
            Span(
                name="turn" if is_turn else f"command {job.command}",
                trace=job.turn,
                id=self.id,
                parent=root_id(job.turn),
                started=self._started,
                ended=max(time_ns(), self._started),
                attributes={
                    **({"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": job.agent} if is_turn else {}),
                    **self._attributes,
                    "gatehouse.outcome": outcome,
                    "gatehouse.is_resumed": job.is_resumed,
                },
                is_failure=is_failure,
                links=tuple(turn for turn in self._outcomes if turn != job.turn and tracer.samples(turn)),
            )
        )
        for ended, how, has_failed in self._outcomes.values():
            tracer.message_ended(ended, how, is_failure=has_failed)


_current: ContextVar[Trace | None] = ContextVar("gatehouse_trace", default=None)
"""The trace of the job that runs. What is deep in a turn opens its spans with it, and knows no tracer."""


def current_trace() -> Trace | None:
    return _current.get()


def end_lane_waits(jobs: Iterable[Job]) -> None:
    """Export how long messages have waited for the turn that answers them now."""
    trace = _current.get()
    if trace is not None:
        for job in jobs:
            trace.tracer.waited(job)


def open_span(
    name: str, attributes: Mapping[str, Value] = {}, *, kind: SpanKind = SpanKind.INTERNAL
) -> OpenSpan | NoSpan:
    """Open a span within the turn that runs. Without tracing, and outside of turns, it does nothing."""
    trace = _current.get()
    return NO_SPAN if trace is None else trace.open(name, kind, attributes)


class Tracer:
    """Makes the spans of sampled messages. `export` must neither block nor raise."""

    def __init__(self, export: Callable[[Span], None], *, sample_ratio: float = 1.0) -> None:
        self.export = export
        # As in OpenTelemetry's `TraceIdRatioBased`: the id decides, so every restart and every node decide alike.
        self._bound = round(sample_ratio * 2**64)
        self._times = BoundedDict[str, _Times](_MAX_ACCEPTED)
        """When the messages that have not ended yet were received and accepted, in this process."""

    def samples(self, turn: str) -> bool:
        """Return whether the message with this turn is traced. One whose id is no trace id never is."""
        try:
            return len(turn) == TRACE_DIGITS and int(turn[-2 * SPAN_ID_BYTES :], 16) < self._bound
        except ValueError:
            return False

    def message_accepted(self, job: Job, *, received: int, committing: int) -> None:
        """Export the spans of the intake and of the commit that has accepted `job`. Times are nanoseconds."""
        if not self.samples(job.turn):
            return
        now = time_ns()
        self._times[job.turn] = _Times(received, now)
        for name, started, ended in (("intake", received, committing), ("commit", committing, now)):
            span = Span(
                name=name,
                trace=job.turn,
                id=urandom(SPAN_ID_BYTES),
                parent=root_id(job.turn),
                started=min(started, ended),
                ended=ended,
                attributes={"gatehouse.begins_turn": True} if name == "commit" and job.has_begun else {},
            )
            self.export(span)

    @contextmanager
    def running(self, job: Job) -> Iterator[None]:
        """Trace a job while it runs: until here it has waited in its lane."""
        if not self.samples(job.turn):
            yield
            return
        trace = Trace(self, job)
        token = _current.set(trace)
        try:
            end_lane_waits([job, *job.collected])
            yield
        finally:
            _current.reset(token)
            trace.end()

    def waited(self, job: Job) -> None:
        """Export how long a message has waited in its lane until now."""
        if self.samples(job.turn):
            since = self._waited_since(job)
            span = OpenSpan(self.export, "lane wait", trace=job.turn, parent=root_id(job.turn), started=since)
            span.end({"gatehouse.is_resumed": job.is_resumed})

    def delivery(self, turn: str, channel: str) -> OpenSpan | NoSpan:
        """Open the span of one attempt to send a part of the answer of `turn`."""
        if not self.samples(turn):
            return NO_SPAN
        about = {"gatehouse.channel": channel}
        kind = SpanKind.CLIENT
        return OpenSpan(self.export, "delivery", trace=turn, parent=root_id(turn), kind=kind, attributes=about)

    def message_ended(self, job: Job, outcome: str, *, is_failure: bool) -> None:
        """Export the root span of a message: from its arrival until its answer was committed."""
        if not self.samples(job.turn):
            return
        times = self._times.pop(job.turn, None)
        now, address = time_ns(), job.inbound.address
        span = Span(
            name="message",
            trace=job.turn,
            id=root_id(job.turn),
            parent=b"",
            started=min(times.received if times is not None else self._waited_since(job), now),
            ended=now,
            kind=SpanKind.CONSUMER,
            attributes={
                "gatehouse.channel": address.channel,
                "gatehouse.account": address.account,
                "gatehouse.chat_kind": address.kind,
                "gatehouse.agent": job.agent,
                "gatehouse.turn": job.turn,
                "gatehouse.outcome": outcome,
                "gatehouse.is_resumed": job.is_resumed,
            },
            is_failure=is_failure,
        )
        self.export(span)

    def _waited_since(self, job: Job) -> int:
        """Return when a message was accepted, also by a process before this one."""
        times = self._times.get(job.turn)
        if times is not None:
            return times.accepted
        return time_ns() if job.accepted_at is None else round(job.accepted_at.timestamp() * 1e9)

"""What is told to Prometheus: the names that alert rules and dashboards rely on."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from gateway import __version__
from gateway.contract import Verdict
from gateway.metrics.exposition import Family, counter, gauge, histogram
from gateway.metrics.tally import DEAD, DELIVERED, Tally
from gateway.sessions import TurnOutcome
from gateway.spool import InboxState, OutboxState
from gateway.watch.vitals import Reading

__all__ = ["families"]

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

"""How `gatehouse status` looks: the facts as lines for a person."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from gateway.files.names import in_bytes
from gateway.text import excerpt, printable
from gateway.text.phrases import ago, count, duration
from gateway.watch.facts import ChannelFacts, Facts, FlushFacts, ModelFacts, SpoolFacts

__all__ = ["screen"]

_TURNS = 10
_REASON = 100
"""Characters of a reason that are shown."""


def screen(facts: Facts) -> list[str]:
    """Return the lines, in which nothing is left that a terminal would obey."""
    return [printable(line) for line in _lines(facts)]


def _lines(facts: Facts) -> Iterator[str]:
    up = duration(timedelta(seconds=facts.uptime_seconds))
    yield f"Gatehouse {facts.version} is {facts.state}, up {up}"
    yield from (f"  ! {sentence}" for sentence in (*facts.troubles, *facts.warnings))
    yield from ("", "Channels")
    yield from (f"  {line}" for line in _channels(facts.channels, facts.taken_at))
    yield from ("", "Work")
    yield from (f"  {line}" for line in _work(facts))
    yield from ("", "Storage")
    yield from (f"  {line}" for line in _storage(facts))
    if facts.models:
        yield from ("", "Models")
        yield from (f"  {_model(each)}" for each in facts.models)
    yield from ("", "Process")
    yield f"  {in_bytes(facts.memory_bytes)} of memory, {count(facts.open_files, 'file')} open"


def _channels(channels: tuple[ChannelFacts, ...], now: datetime) -> Iterator[str]:
    names = {id(each): each.name if each.account == "default" else f"{each.name}:{each.account}" for each in channels}
    width = max(map(len, names.values()), default=0)
    for each in channels:
        yield f"{names[id(each)]:<{width}}  {each.state:<8}  {_channel(each, now)}".rstrip()


def _channel(channel: ChannelFacts, now: datetime) -> str:
    heard = "no event yet" if channel.last_event_at is None else f"last event {ago(channel.last_event_at, now)}"
    if channel.state != "up" and channel.reason:
        return f"since {duration(now - channel.since)}: {excerpt(channel.reason, _REASON)}; {heard}"
    if channel.last_error_at is None:
        return heard
    return f"{heard}; last error {ago(channel.last_error_at, now)}: {excerpt(channel.last_error, _REASON)}"


def _work(facts: Facts) -> Iterator[str]:
    asking = f", {facts.turns_awaiting_approval} waiting for an approval" if facts.turns_awaiting_approval else ""
    yield (
        f"{count(facts.turns_running, 'turn')} running{asking}, {count(facts.messages_waiting, 'message')} waiting, "
        f"{_replies(facts.replies_waiting)} on the way"
    )
    for turn in facts.turns[:_TURNS]:
        yield f"  {duration(timedelta(seconds=turn.seconds)):>6}  {turn.channel}  {turn.agent}  {turn.session}"
    if len(facts.turns) > _TURNS:
        yield f"  and {len(facts.turns) - _TURNS} more"


def _replies(number: int) -> str:
    return "1 reply" if number == 1 else f"{number} replies"


def _storage(facts: Facts) -> Iterator[str]:
    yield f"{count(facts.sessions, 'session')} in {count(facts.scopes, 'scope')}"
    yield "the spool does not answer" if facts.spool is None else _spool(facts.spool)
    yield _flush(facts.flush)
    if facts.disk_free_bytes is not None:
        yield f"{in_bytes(facts.disk_free_bytes)} free on the disk"


def _flush(flush: FlushFacts) -> str:
    failed = f", {count(flush.failures, 'failure')}" if flush.failures else ""
    if flush.took_seconds is None:
        return f"not flushed yet{failed}"
    age = duration(timedelta(seconds=flush.age_seconds))
    return f"last flush {age} ago (took {flush.took_seconds * 1000:.0f} ms{failed})"


def _spool(spool: SpoolFacts) -> str:
    dead = spool.messages.get("dead", 0) + spool.replies.get("dead", 0)
    aside = f", {dead} set aside (`gatehouse spool` lists them)" if dead else ""
    open_messages = sum(spool.messages.values()) - spool.messages.get("dead", 0)
    open_replies = sum(spool.replies.values()) - spool.replies.get("dead", 0)
    return f"spool {in_bytes(spool.bytes)}: {open_messages} to be answered, {open_replies} to be delivered{aside}"


def _model(model: ModelFacts) -> str:
    failed = f", {model.failed} failed" if model.failed else ""
    most = "" if model.most_within_seconds is None else f", 95 % within {model.most_within_seconds:g} s"
    return f"{model.name}: {count(model.requests, 'request')}{failed}, {model.mean_seconds:.2f} s on average{most}"

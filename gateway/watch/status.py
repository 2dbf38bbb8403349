"""What the gateway says of itself: a sentence in chat, a table of facts for the command line."""

from datetime import UTC, datetime

import msgspec
from aiohttp import web

from gateway import __version__
from gateway.contract import Access, Caller, Route
from gateway.http.routes import ChannelHealth
from gateway.metrics import Histogram, Tally
from gateway.spool import Stats
from gateway.text.clean import count, duration
from gateway.watch.at_work import Running
from gateway.watch.facts import ChannelFacts, Facts, FlushFacts, ModelFacts, SpoolFacts, TurnFacts
from gateway.watch.vitals import Vitals

__all__ = ["Status"]

_SHOWN = 100
"""Turns that are told one by one: the longest."""
_MOST = 0.95


class Status:
    def __init__(self, vitals: Vitals, tally: Tally) -> None:
        self._vitals = vitals
        self._tally = tally

    def sentence(self) -> str:
        vitals = self._vitals
        health = vitals.health()
        channels = ", ".join(f"{channel.name} {channel.state}" for channel in health.channels)
        lines = [
            f"Gatehouse {__version__}, up {duration(vitals.now() - vitals.started)}; channels: {channels}.",
            f"{self._running()}, {count(vitals.lanes.waiting, 'message')} waiting.",
            *(f"Trouble: {trouble}" for trouble in (*health.troubles, *health.warnings)),
        ]
        return "\n".join(lines)

    def _running(self) -> str:
        running, resting = self._vitals.lanes.running, self._vitals.lanes.resting
        asking = f", {resting} waiting for an approval" if resting else ""
        return f"{count(running, 'turn')} running{asking}"

    async def facts(self) -> Facts:
        reading = await self._vitals.take()
        health = reading.health
        return Facts(
            version=__version__,
            sentence=self.sentence(),
            state=health.state,
            ready=health.ready,
            taken_at=reading.taken_at,
            started_at=reading.started_at,
            uptime_seconds=round(reading.uptime, 1),
            troubles=health.troubles,
            warnings=health.warnings,
            channels=tuple(map(self._channel, health.channels)),
            turns_running=reading.turns_running,
            turns_awaiting_approval=reading.turns_resting,
            turns=tuple(map(_turn, reading.running[:_SHOWN])),
            messages_waiting=reading.messages_waiting,
            replies_waiting=reading.replies_waiting,
            sessions=reading.sessions,
            scopes=reading.scopes,
            spool=None if reading.spool is None else _spool(reading.spool),
            flush=FlushFacts(
                age_seconds=round(reading.flush_age, 1),
                took_seconds=None if reading.flush_took is None else round(reading.flush_took, 4),
                failures=reading.flush_failures,
            ),
            memory_bytes=reading.memory_bytes,
            open_files=reading.open_files,
            disk_free_bytes=reading.disk_free_bytes,
            models=tuple(self._model(name, seconds) for (name,), seconds in self._tally.answers.items()),
        )

    def _channel(self, channel: ChannelHealth) -> ChannelFacts:
        heard = self._tally.last_events.get((channel.name, channel.account))
        return ChannelFacts(
            name=channel.name,
            account=channel.account,
            state=channel.state,
            reason=channel.reason,
            since=channel.since,
            last_event_at=None if heard is None else datetime.fromtimestamp(heard, UTC),
            last_error=channel.last_error,
            last_error_at=channel.last_error_at,
        )

    def _model(self, name: str, seconds: Histogram) -> ModelFacts:
        most = seconds.bound_of(_MOST)
        return ModelFacts(
            name=name,
            requests=seconds.count,
            failed=self._tally.requests[name, "failed"],
            mean_seconds=round(seconds.total / seconds.count, 3),
            most_within_seconds=None if most == float("inf") else most,
        )

    def routes(self) -> list[Route]:
        return [Route(method="GET", path="/status", access=Access.OWNER, handle=self._answer)]

    async def _answer(self, _request: web.Request, _caller: Caller) -> web.StreamResponse:
        return web.Response(body=msgspec.json.encode(await self.facts()), content_type="application/json")


def _turn(running: Running) -> TurnFacts:
    job = running.job
    return TurnFacts(
        channel=job.inbound.address.channel, agent=job.agent, session=job.session, seconds=round(running.seconds, 1)
    )


def _spool(stats: Stats) -> SpoolFacts:
    return SpoolFacts(
        bytes=stats.file_bytes,
        messages={str(state): number for state, number in stats.inbox.items()},
        replies={str(state): number for state, number in stats.outbox.items()},
    )

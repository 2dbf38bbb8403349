"""What the gateway says of itself: a sentence in chat, a table of facts for the command line."""

from collections.abc import Callable
from datetime import datetime

from aiohttp import web

from gateway import __version__
from gateway.commands.wording import count, duration
from gateway.contract import Access, Caller, Route
from gateway.dialogue import Json
from gateway.http.routes import Health
from gateway.jobs import Job
from gateway.lanes import Lanes

__all__ = ["Status"]


class Status:
    def __init__(
        self,
        *,
        health: Callable[[], Health],
        lanes: Lanes[Job],
        now: Callable[[], datetime],
    ) -> None:
        self._health = health
        self._lanes = lanes
        self._now = now
        self._started = now()

    def sentence(self) -> str:
        health = self._health()
        channels = ", ".join(f"{channel.name} {channel.state}" for channel in health.channels)
        lines = [
            f"Gatehouse {__version__}, up {duration(self._now() - self._started)}; channels: {channels}.",
            f"{self._running()}, {count(self._lanes.waiting, 'message')} waiting.",
            *(f"Trouble: {trouble}" for trouble in health.troubles),
        ]
        return "\n".join(lines)

    def _running(self) -> str:
        running, resting = self._lanes.running, self._lanes.resting
        asking = f", {resting} waiting for an approval" if resting else ""
        return f"{count(running, 'turn')} running{asking}"

    def facts(self) -> dict[str, Json]:
        health = self._health()
        return {
            "version": __version__,
            "sentence": self.sentence(),
            "ready": health.ready,
            "started_at": self._started.isoformat(),
            "turns_running": self._lanes.running,
            "turns_awaiting_approval": self._lanes.resting,
            "messages_waiting": self._lanes.waiting,
            "channels": [
                {"name": each.name, "account": each.account, "state": each.state, "reason": each.reason}
                for each in health.channels
            ],
            "troubles": list(health.troubles),
        }

    def routes(self) -> list[Route]:
        return [Route(method="GET", path="/status", access=Access.OWNER, handle=self._answer)]

    async def _answer(self, _request: web.Request, _caller: Caller) -> web.StreamResponse:
        return web.json_response(self.facts())

"""What the operator changes in a running gateway through the control socket: its configuration, and what it logs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from aiohttp import web

from config import LogLevel
from gateway.contract import Access, Caller, Route
from gateway.errors import Refused

__all__ = ["Operator"]

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Operator:
    """What whoever has started the gateway lets be changed; it comes when there is something to change."""

    reload: Callable[[], Awaitable[None]] | None = None
    """Reads the configuration again, or raises `Refused`; set by whoever knows where it is."""
    set_log_level: Callable[[LogLevel], None] | None = None
    """Changes what is logged; set by whoever has set up the log."""

    def routes(self) -> list[Route]:
        return [
            Route(method="POST", path="/reload", access=Access.CONTROL, handle=self._handle_reload),
            Route(method="POST", path="/log-level", access=Access.CONTROL, handle=self._handle_log_level),
        ]

    async def _handle_reload(self, _request: web.Request, _caller: Caller) -> web.StreamResponse:
        if self.reload is None:
            raise Refused("This gateway belongs to a chat; it reads its configuration when it starts.")
        await self.reload()
        return web.json_response({})

    async def _handle_log_level(self, request: web.Request, _caller: Caller) -> web.StreamResponse:
        level = (await request.json()).get("level")
        if self.set_log_level is None or level not in set(LogLevel):
            raise Refused(f"The log level has to be one of: {', '.join(LogLevel)}.")
        self.set_log_level(LogLevel(level))
        log.info("log_level_changed", to=level)
        return web.json_response({})

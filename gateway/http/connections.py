"""The doorkeeper: how many connections there may be, and how long one may take before it says who it is."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web
from aiohttp.web_request import BaseRequest

from gateway.http.responses import OUR_FAULT, SECURITY_HEADERS, HttpLimits, error_response

__all__ = ["Doorkeeper", "Visitors", "is_control"]

log = structlog.get_logger(__name__)

NOT_UNDERSTOOD = "This is not a request that Gatehouse understands."


@dataclass(slots=True, kw_only=True)
class _Visit:
    transport: asyncio.Transport
    timer: asyncio.TimerHandle
    has_header: bool = False
    is_complete: bool = False


class Visitors:
    """The open connections: strangers, few and for a short time, and those who have shown a credential."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._strangers: dict[web.RequestHandler, _Visit] = {}
        self._known: set[web.RequestHandler] = set()
        self._present: set[web.RequestHandler] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._is_closed = False

    def close(self) -> None:
        """Let nobody in any more."""
        self._is_closed = True

    async def see_off(self) -> None:
        """Wait, not for long, until the last connection has gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.closing):
                await self._is_empty.wait()

    def arrive(self, connection: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Start the clock for a newcomer, or close it when the house is full of those who are being served."""
        self._present.add(connection)
        self._is_empty.clear()
        if not self._is_closed and is_control(transport) and self.admit(connection):
            return
        if self._is_closed or is_control(transport) or not self._make_room():
            transport.abort()
            return
        timer = _abort_after(self._limits.header, transport)
        self._strangers[connection] = _Visit(transport=transport, timer=timer)

    def hear(self, connection: web.RequestHandler) -> None:
        """Note that a whole header has come."""
        visit = self._strangers.get(connection)
        if visit is not None and not visit.has_header:
            visit.timer.cancel()
            visit.timer = _abort_after(self._limits.visit, visit.transport)
            visit.has_header = True

    def serve(self, connection: web.RequestHandler) -> None:
        """Note that the body has come too, and that a handler is at work: such a stranger is not sent away."""
        visit = self._strangers.get(connection)
        if visit is not None:
            visit.is_complete = True

    def admit(self, connection: web.RequestHandler) -> bool:
        """Count a connection among the known ones from now on; false when there are too many of those."""
        if connection in self._known:
            return True
        if len(self._known) >= self._limits.known:
            return False
        self._forget(connection)
        self._known.add(connection)
        return True

    def is_known(self, connection: web.RequestHandler) -> bool:
        return connection in self._known

    def leave(self, connection: web.RequestHandler) -> None:
        self._known.discard(connection)
        self._forget(connection)
        self._present.discard(connection)
        if not self._present:
            self._is_empty.set()

    def _make_room(self) -> bool:
        """Close the oldest stranger that has not sent a whole request, if the house is full."""
        if len(self._strangers) < self._limits.strangers:
            return True
        idle = next((stranger for stranger, visit in self._strangers.items() if not visit.is_complete), None)
        if idle is None:
            return False
        self._strangers[idle].transport.abort()
        self._forget(idle)
        return True

    def _forget(self, stranger: web.RequestHandler) -> None:
        visit = self._strangers.pop(stranger, None)
        if visit is not None:
            visit.timer.cancel()


class Doorkeeper(web.Server):
    """Makes the connections and tells `Visitors` of them; aiohttp reports each connection and asks for each request."""

    def __init__(
        self,
        handler: Callable[..., Any],  # Any: the types of both callables are private to aiohttp.
        make_request: Callable[..., BaseRequest],
        *,
        visitors: Visitors,
        limits: HttpLimits,
    ) -> None:
        super().__init__(handler, request_factory=self._hear)
        self._make = make_request
        self._visitors = visitors
        self._limits = limits

    def __call__(self) -> web.RequestHandler:
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=self._limits.keep_alive,
            lingering_time=self._limits.lingering,
            access_log=None,  # type: ignore[arg-type]  # None turns it off, says aiohttp's documentation.
            auto_decompress=False,
        )

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._visitors.arrive(handler, transport)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._visitors.leave(handler)

    def _hear(self, message: object, payload: object, protocol: web.RequestHandler, *rest: object) -> BaseRequest:
        self._visitors.hear(protocol)
        return self._make(message, payload, protocol, *rest)


class _Connection(web.RequestHandler):
    """aiohttp's connection, but for what it says and logs about requests that it cannot read."""

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's text quotes the offending bytes; ours does not.
    ) -> web.StreamResponse:
        is_ours = status >= HTTPStatus.INTERNAL_SERVER_ERROR
        if is_ours and not isinstance(exc, ConnectionError):
            log.error("request_failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionResetError("The answer had begun when its handler failed.")
        # aiohttp would add its banner where the header is absent.
        headers = SECURITY_HEADERS | {"Server": ""}
        answer = error_response(status, OUR_FAULT if is_ours else NOT_UNDERSTOOD, headers)
        answer.force_close()
        return answer


def is_control(transport: asyncio.BaseTransport) -> bool:
    """Tell whether a connection came through the control socket."""
    return bool(transport.get_extra_info("socket").family == socket.AF_UNIX)


def _abort_after(seconds: float, transport: asyncio.Transport) -> asyncio.TimerHandle:
    # A polite close would wait for a peer that does not read.
    return asyncio.get_running_loop().call_later(seconds, transport.abort)

"""Limits on connections: how many may be open, and how long one may stay open without a credential."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.web_request import BaseRequest

from gateway.http.responses import INTERNAL_ERROR, SECURITY_HEADERS, HttpLimits, error_response

log = structlog.get_logger(__name__)

EXPECTATION = web.RequestKey("expectation", object)
"""The header `Expect` of a request, a text or None. `Guard` answers it."""
FIRST_REQUEST_TIMEOUT, FIRST_REQUEST_POLL = 0.25, 0.01
"""For how long a server that closes waits for requests on new connections, and how often it looks."""
INVALID_REQUEST = "This is not a valid HTTP request."


class ConnectionServer(web.Server):
    """aiohttp's server, with limits. aiohttp reports each connection to it, and asks it to create each request.

    Anonymous connections are few and short. An authenticated connection may stay open.
    """

    def __init__(
        self,
        handler: Callable[..., Any],  # Any: the types of both callables are private to aiohttp.
        make_request: Callable[..., BaseRequest],
        *,
        limits: HttpLimits,
    ) -> None:
        super().__init__(handler, request_factory=self._start_request)
        self.limits = limits
        self.anonymous: dict[HttpConnection, asyncio.Transport] = {}
        """In the order of their arrival. aiohttp drops its own reference to a transport before that has closed."""
        self.authenticated: dict[HttpConnection, asyncio.Transport] = {}
        self.idle: dict[HttpConnection, None] = {}
        """Authenticated connections that wait for their next request, the longest idle first."""
        self.control: set[HttpConnection] = set()
        self._make_request_of_app = make_request
        self._open: set[HttpConnection] = set()
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._is_closing = False
        self.is_ending = False
        """The server closes soon, so each response ends its connection. Then no request is sent on it too late."""

    def refuse_new(self) -> None:
        """Close every new connection at once."""
        self._is_closing = True

    async def wait_for_first_requests(self) -> None:
        """Wait a moment until new connections have sent their first request. Closing them earlier would lose it."""
        until = asyncio.get_running_loop().time() + FIRST_REQUEST_TIMEOUT
        while any(not connection.is_being_served for connection in self.anonymous):
            if asyncio.get_running_loop().time() > until:
                return
            await asyncio.sleep(FIRST_REQUEST_POLL)

    async def wait_closed(self) -> None:
        """Wait until the last connection has closed, but not longer than `limits.closing`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limits.closing):
                await self._all_closed.wait()

    def drop_token(self, token: str) -> None:
        """Cut the connections that have shown an API token, with their WebSockets and unfinished responses.

        With an empty id, cut those of owners. Connections of the control socket stay: the system says who is behind
        them.
        """
        for connection, transport in list(self.authenticated.items()):
            if connection.token == token:
                transport.abort()

    def drop_streams(self) -> None:
        """Cut the connections whose handlers would write until their clients leave."""
        for connection in list(self._open):
            if connection.stream is not None and connection.transport is not None:
                connection.transport.abort()

    def close_idle(self, *, keep: int) -> None:
        """Close authenticated connections that wait for a request, the longest idle first, until `keep` are left."""
        while len(self.idle) > keep:
            connection = next(iter(self.idle))
            del self.idle[connection]
            # The response before has been written. A client that does not read it must not hold the descriptor.
            connection.abort_after(self.limits.linger, self.authenticated.pop(connection))
            connection.force_close()

    def __call__(self) -> web.RequestHandler:
        return HttpConnection(self)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        assert isinstance(handler, HttpConnection)  # noqa: S101 - `__call__` makes all of them.
        self._open.add(handler)
        self._all_closed.clear()
        handler.is_control = transport.get_extra_info("socket").family == socket.AF_UNIX
        if self._is_closing or (handler.is_control and len(self.control) >= self.limits.max_control):
            transport.abort()
            return
        if handler.is_control:
            self.control.add(handler)
            return
        if len(self.anonymous) >= self.limits.max_anonymous:
            # Make room: close the oldest connection that has not sent a whole request. So idle connections cannot
            # keep others out, and a request that a handler works on is never cut off.
            idle = next((connection for connection in self.anonymous if not connection.is_being_served), None)
            if idle is None:
                transport.abort()
                return
            self.anonymous.pop(idle).abort()
        self.anonymous[handler] = transport
        handler.abort_after(self.limits.header, transport)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        assert isinstance(handler, HttpConnection)  # noqa: S101 - `__call__` makes all of them.
        self.authenticated.pop(handler, None)
        self.idle.pop(handler, None)
        self.control.discard(handler)
        self.anonymous.pop(handler, None)
        handler.cancel_abort()
        if handler.stream is not None:
            handler.stream.cancel()
        self._open.discard(handler)
        if not self._open:
            self._all_closed.set()

    def _start_request(
        self, message: RawRequestMessage, payload: object, protocol: web.RequestHandler, *rest: object
    ) -> BaseRequest:
        """Create the request. aiohttp calls this when the header is complete.

        aiohttp would answer the header `Expect` before all of our checks. So it does not get to see it.
        """
        assert isinstance(protocol, HttpConnection)  # noqa: S101 - `__call__` makes all of them.
        self.idle.pop(protocol, None)
        if protocol in self.anonymous and not protocol.has_header:
            protocol.has_header = True
            protocol.abort_after(self.limits.anonymous, self.anonymous[protocol])
        expectation = message.headers.get("Expect")
        if expectation is not None:
            headers = message.headers.copy()
            del headers["Expect"]
            message = message._replace(headers=type(message.headers)(headers))
        request = self._make_request_of_app(message, payload, protocol, *rest)
        request[EXPECTATION] = expectation
        return request


class HttpConnection(web.RequestHandler):
    """aiohttp's connection, with the state that the limits depend on, and with our own error responses."""

    def __init__(self, server: ConnectionServer) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=server.limits.keep_alive,
            lingering_time=server.limits.linger,
            access_log=None,  # type: ignore[arg-type]  # None turns it off, says aiohttp's documentation.
            auto_decompress=False,
        )
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self.is_control = False
        """The connection came through the control socket."""
        self.has_header = False
        self.is_being_served = False
        """A whole request has arrived, and a handler works on it."""
        self.token = ""
        """The id of the API token that the last request has shown; empty for owners and anonymous clients."""
        self.stream: asyncio.Task[object] | None = None
        """The task of a handler that writes for as long as the client reads. It is cancelled when the client leaves."""

    @property
    def is_ending(self) -> bool:
        return self._server.is_ending

    @property
    def is_authenticated(self) -> bool:
        return self.is_control or self in self._server.authenticated

    def authenticate(self, token: str) -> bool:
        """Count this connection as authenticated from now on. Returns False if there are too many already.

        `token` is the id of the API token that it has shown, and empty for an owner.
        """
        self.token = token
        server = self._server
        if self.is_authenticated:
            return True
        limit = server.limits.max_authenticated
        limit -= limit // 8 if token else 0
        if len(server.authenticated) >= limit:
            server.close_idle(keep=max(0, len(server.idle) - 1))
        transport = server.anonymous.get(self)
        if len(server.authenticated) >= limit or transport is None:
            return False
        server.authenticated[self] = server.anonymous.pop(self)
        self.cancel_abort()
        return True

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write the response. After that, an authenticated connection is idle until its next request."""
        finished = await super().finish_response(request, resp, start_time)
        if self in self._server.authenticated and resp.keep_alive:
            self._server.idle[self] = None
            self._server.close_idle(keep=self._server.limits.max_idle)
        return finished

    def abort_after(self, seconds: float, transport: asyncio.Transport) -> None:
        """Abort this connection later. A polite close would wait for a client that does not read."""
        self.cancel_abort()
        self._timer = asyncio.get_running_loop().call_later(seconds, transport.abort)

    def cancel_abort(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's text quotes the offending bytes; ours does not.
    ) -> web.StreamResponse:
        """Respond to a request that aiohttp cannot read, or that failed outside of `HttpApp`."""
        is_our_fault = status >= HTTPStatus.INTERNAL_SERVER_ERROR
        if is_our_fault and not isinstance(exc, ConnectionError):
            log.error("request_failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionResetError("The response had begun when its handler failed.")
        # aiohttp would add its banner if the header were absent.
        headers = SECURITY_HEADERS | {"Server": ""}
        response = error_response(request.path, status, INTERNAL_ERROR if is_our_fault else INVALID_REQUEST, headers)
        response.force_close()
        return response

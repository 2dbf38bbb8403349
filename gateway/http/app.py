"""The aiohttp app: guards each request, runs its route's handler within a deadline, and responds to errors."""

import asyncio
import contextlib
import weakref
from collections.abc import Collection, Sequence
from http import HTTPStatus

import structlog
from aiohttp import WSCloseCode, web
from aiohttp.typedefs import Handler

from gateway.contract import Caller, Route
from gateway.errors import CannotStart, HeldElsewhere
from gateway.http.auth import Auth, cookie_id
from gateway.http.connections import HttpConnection
from gateway.http.forwarding import FORWARDED, FORWARDED_CALLER, NOT_HERE
from gateway.http.guard import Guard, cookie_name
from gateway.http.request_rate import ALLOWANCE
from gateway.http.responses import (
    INTERNAL_ERROR,
    SECURITY_HEADERS,
    HttpError,
    HttpLimits,
    error_response,
    is_under,
    response_for,
)

log = structlog.get_logger(__name__)

_WEBSOCKETS: web.AppKey["weakref.WeakKeyDictionary[web.WebSocketResponse, web.Request]"] = web.AppKey("websockets")
"""The open WebSockets, with the requests that opened them."""


class HttpApp:
    """Serves `routes`. `_respond` is a request's way from aiohttp to its handler and back."""

    def __init__(self, routes: Sequence[Route], *, guard: Guard, limits: HttpLimits) -> None:
        self._guard = guard
        self._limits = limits
        self.app = web.Application(middlewares=[self._respond], client_max_size=guard.max_body_bytes)
        self.app[_WEBSOCKETS] = weakref.WeakKeyDictionary()
        self.app.on_response_prepare.append(self._prepare_response)
        self._routes: dict[web.AbstractRoute, Route] = {}
        seen: set[tuple[str, str]] = set()
        for route in routes:
            name = f"{route.method} {route.path}"
            if (route.method, route.path) in seen:
                # aiohttp would serve the first of the two, and never the second.
                raise CannotStart(f"Two channels serve the HTTP route {name}. Disable one of them.")
            seen.add((route.method, route.path))
            # aiohttp leaves out the body of a response to HEAD. A stream would have no end then.
            has_head = route.method == "GET" and not route.is_stream
            methods = ("GET", "HEAD") if has_head else (route.method,)
            try:
                added = [self.app.router.add_route(method, route.path, _unreachable) for method in methods]
            except (RuntimeError, ValueError) as error:
                raise CannotStart(f"The HTTP route {name} is invalid. Disable the channel that serves it.") from error
            self._routes.update(dict.fromkeys(added, route))

    async def close_websockets(self) -> None:
        """Tell every WebSocket that we are going away, and wait briefly until the clients have closed theirs."""

        async def close(websocket: web.WebSocketResponse) -> None:
            # It may have been lost already, or may not be fully open yet.
            with contextlib.suppress(ConnectionError, RuntimeError):
                await websocket.close(code=WSCloseCode.GOING_AWAY, message=b"Gatehouse is stopping.")

        websockets = list(self.app[_WEBSOCKETS].keys())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.closing), asyncio.TaskGroup() as tasks:
                for number, websocket in enumerate(websockets):
                    tasks.create_task(close(websocket), name=f"http:close_websocket:{number}")

    @web.middleware
    async def _respond(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, HttpConnection)  # noqa: S101 - `ConnectionServer` makes no others.
        try:
            response = await self._serve(request, handler, connection)
        except Exception as error:  # A handler's bug must not stop the server, and the client must get a response.
            is_disconnected = request.transport is None or request.transport.is_closing()
            if isinstance(error, ConnectionError) and is_disconnected:
                raise
            has_begun = request.writer.output_size > 0
            expected = None if has_begun else response_for(error, request.path)
            if expected is not None:
                response = expected
            else:
                route = self._routes.get(request.match_info.route)
                path = route.path if route else None  # The route's, because a path may contain secrets.
                log.exception("request_failed", method=request.method, route=path, exc_info=error)
                _abort_if_begun(request)
                response = error_response(request.path, HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL_ERROR)
        if not response.prepared and (connection.is_ending or not connection.is_authenticated):
            # An anonymous client gets one request per connection, so it cannot hold one with a request now and then.
            response.force_close()
        return response

    async def _serve(self, request: web.Request, handler: Handler, connection: HttpConnection) -> web.StreamResponse:
        self._guard.check_address(request, connection)
        route = self._routes.get(request.match_info.route)
        if route is None:
            return await handler(request)  # aiohttp's own 404 or 405.
        is_upgrade = request.headers.get("Upgrade", "").lower() == "websocket"
        if is_upgrade and request.method != route.method:
            raise web.HTTPMethodNotAllowed(request.method, [route.method])  # HEAD opens no WebSocket.
        caller = await self._guard.admit(request, route, connection)
        if is_upgrade and caller.is_owner:
            return await self._handle(request, route, caller)
        if route.is_stream:
            connection.stream = asyncio.current_task()
            try:
                return await self._handle(request, route, caller)
            finally:
                connection.stream = None
        limit = self._limits.upload if route.takes_file else self._limits.handler
        deadline = asyncio.timeout(limit if route.deadline is None else route.deadline)
        try:
            async with deadline:
                return await self._handle(request, route, caller, deadline)
        except TimeoutError:
            if not deadline.expired():
                raise
        log.warning("request_timed_out", method=route.method, route=route.path)
        _abort_if_begun(request)
        raise HttpError(HTTPStatus.GATEWAY_TIMEOUT, "This took too long. Try again.")

    async def _handle(
        self, request: web.Request, route: Route, caller: Caller, deadline: asyncio.Timeout | None = None
    ) -> web.StreamResponse:
        """Run the handler, or let another node handle the request. `deadline` is extended by the search for it."""
        forwarder = self._guard.forwarder
        if forwarder is None:
            return await route.handle(request, caller)
        try:
            return await forwarder.handle(request, route, caller)
        except HeldElsewhere as error:
            if request.writer.output_size > 0:
                raise  # A bug of the handler. The client has a part of a response already.
            held = error
        if FORWARDED_CALLER in request:
            return error_response(request.path, HTTPStatus.MISDIRECTED_REQUEST, str(held), headers={NOT_HERE: "1"})
        if deadline is not None and (when := deadline.when()) is not None:
            deadline.reschedule(when + forwarder.deadline)
        return await forwarder.forward(request, route, caller, held)

    async def _prepare_response(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(SECURITY_HEADERS)
        response.headers.pop("Server", None)
        if (allowance := request.get(ALLOWANCE)) is not None:
            response.headers.update(allowance.headers(is_openai=is_under(request.path, "/v1")))
        if FORWARDED_CALLER in request:
            response.headers[FORWARDED] = "1"
        if isinstance(response, web.WebSocketResponse):
            self.app[_WEBSOCKETS][response] = request


def abort_websockets(app: web.Application, auth: Auth, cookies: Collection[str]) -> None:
    """Cut the WebSockets that were opened with the cookies that have these ids."""
    for request in list(app[_WEBSOCKETS].values()):
        cookie = request.cookies.get(cookie_name(request, auth))
        if cookie is not None and cookie_id(cookie) in cookies and request.transport is not None:
            request.transport.abort()


def _abort_if_begun(request: web.Request) -> None:
    """Cut the connection if a response has begun: a second one must not follow half of the first."""
    if request.writer.output_size > 0:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("The response had begun when its handler failed.")


async def _unreachable(_: web.Request) -> web.StreamResponse:
    """Take the place of a route's handler, which needs the caller too. So only the middleware can call that."""
    raise web.HTTPNotFound

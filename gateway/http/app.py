"""From a route of the contract to an aiohttp app: each request is checked, handled within its time, and answered."""

import asyncio
import contextlib
import weakref
from collections.abc import Iterator, Sequence
from http import HTTPStatus

import structlog
from aiohttp import WSCloseCode, web
from aiohttp.typedefs import Handler

from gateway.contract import Caller, Route
from gateway.errors import CannotStart
from gateway.http.guard import Guard, cookie_name, is_upgrade
from gateway.http.responses import OUR_FAULT, SECURITY_HEADERS, HttpError, HttpLimits, error_response, explain

__all__ = ["HttpApp"]

log = structlog.get_logger(__name__)


class HttpApp:
    """Holds the aiohttp app, and the WebSockets that its handlers have opened."""

    def __init__(self, routes: Sequence[Route], *, gate: Guard, limits: HttpLimits) -> None:
        self._gate = gate
        self._limits = limits
        self._websockets: weakref.WeakKeyDictionary[web.WebSocketResponse, web.Request] = weakref.WeakKeyDictionary()
        self.app = web.Application(middlewares=[self._answer], client_max_size=gate.max_body_bytes)
        self.app.on_response_prepare.append(self._dress)
        self._routes = {added: route for route in _distinct(routes) for added in self._add(route)}
        gate.auth.on_revoked = self._show_out

    async def close_websockets(self) -> None:
        """Tell every WebSocket that we are going away, and wait a little for their goodbyes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.closing), asyncio.TaskGroup() as goodbyes:
                for number, websocket in enumerate(list(self._websockets)):
                    goodbyes.create_task(_say_goodbye(websocket), name=f"http:goodbye:{number}")

    def _add(self, route: Route) -> list[web.AbstractRoute]:
        """Let HEAD in where GET may come in; aiohttp leaves out the body."""
        methods = ("GET", "HEAD") if route.method == "GET" else (route.method,)
        try:
            return [self.app.router.add_route(method, route.path, _unguarded) for method in methods]
        except (RuntimeError, ValueError) as error:
            raise CannotStart(
                f"The HTTP route {route.method} {route.path} is not possible; disable the channel that it belongs to."
            ) from error

    def _show_out(self, cookie: str) -> None:
        """Cut the WebSockets that were opened with a cookie which is not good any more."""
        for request in list(self._websockets.values()):
            if request.cookies.get(cookie_name(request)) == cookie and request.transport is not None:
                request.transport.abort()

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await self._answer_or_excuse(request, handler)
        if not response.prepared and not self._gate.visitors.is_known(request.protocol):
            # A stranger has one request per connection, so that none can be held by asking now and then.
            response.force_close()
        return response

    async def _answer_or_excuse(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn every failure into a sentence; one handler's bug must not stop the server, nor show its insides."""
        try:
            return await self._serve(request, handler)
        except Exception as error:  # Whatever it is, somebody waits for an answer.
            if isinstance(error, ConnectionError) and _has_gone(request):
                raise
            answer = None if _has_begun(request) else explain(error)
            return answer or self._excuse(request, error)

    async def _serve(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._gate.check_address(request)
        route = self._routes.get(request.match_info.route)
        if route is None:
            return await handler(request)
        if request.method != route.method and is_upgrade(request):
            raise web.HTTPMethodNotAllowed(request.method, [route.method])
        caller = await self._gate.admit(request, route)
        if caller.is_owner and is_upgrade(request):
            return await route.handle(request, caller)
        return await self._handle_in_time(route, request, caller)

    async def _handle_in_time(self, route: Route, request: web.Request, caller: Caller) -> web.StreamResponse:
        usual = self._limits.upload if route.takes_file else self._limits.handler
        deadline = asyncio.timeout(usual if route.deadline is None else route.deadline)
        try:
            async with deadline:
                return await route.handle(request, caller)
        except TimeoutError:
            if not deadline.expired():
                raise
        log.warning("request_timed_out", method=route.method, route=route.path)
        self._give_up_if_begun(request)
        raise HttpError(HTTPStatus.GATEWAY_TIMEOUT, "This took too long; try again.")

    def _excuse(self, request: web.Request, error: Exception) -> web.StreamResponse:
        route = self._routes.get(request.match_info.route)
        log.error("request_failed", method=request.method, route=route.path if route else None, exc_info=error)
        self._give_up_if_begun(request)
        return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, OUR_FAULT)

    @staticmethod
    def _give_up_if_begun(request: web.Request) -> None:
        """Cut the connection rather than put a second answer behind half of the first."""
        if _has_begun(request):
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("The answer had begun when its handler failed.")

    async def _dress(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(SECURITY_HEADERS)
        response.headers.pop("Server", None)
        if isinstance(response, web.WebSocketResponse):
            self._websockets[response] = request


def _distinct(routes: Sequence[Route]) -> Iterator[Route]:
    """Pass on routes that differ. aiohttp would serve the first of two that do not, and never the second."""
    seen: set[tuple[str, str]] = set()
    for route in routes:
        if (route.method, route.path) in seen:
            raise CannotStart(f"The HTTP route {route.method} {route.path} belongs to two channels; disable one.")
        seen.add((route.method, route.path))
        yield route


async def _say_goodbye(websocket: web.WebSocketResponse) -> None:
    # It may be lost already, or not quite open yet.
    with contextlib.suppress(ConnectionError, RuntimeError):
        await websocket.close(code=WSCloseCode.GOING_AWAY, message=b"Gatehouse is stopping.")


async def _unguarded(_: web.Request) -> web.StreamResponse:
    """Stand in for a route's handler, which only the middleware can call: it takes the caller too."""
    raise web.HTTPNotFound


def _has_begun(request: web.Request) -> bool:
    return request.writer.output_size > 0


def _has_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()

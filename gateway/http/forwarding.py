"""Forwards requests and WebSockets to the node of the cluster that owns their conversation.

A load balancer sends a request to any node. A handler that needs a conversation of another node raises `HeldElsewhere`
before it has changed or written anything. The app then forwards the request, and the client does not notice.

Why it is done in this way:

- The handler decides, and not the path: only the handler knows which conversation a request belongs to.
- The first node authenticates the client, checks Host and Origin, and counts the rate. It sends the caller in a header,
  because the owner may not be able to identify the caller again: the system vouches for callers of the control socket,
  and cookies are named after the port. The owner trusts that header only together with the token of the nodes.
- A request is forwarded once. If the conversation has moved on, its former owner answers 421, and the first node looks
  for the new owner. So two nodes with different views cannot send a request in circles.
- A request is repeated only if that is safe: it was never sent, the owner answered 421, or a repetition has no further
  effect. The routes of prompts drop repetitions with the same `Idempotency-Key`, so each forwarded prompt gets one.
- A conversation may move while its handler runs. A handler that does not find it any more runs once again, and then
  raises `HeldElsewhere`.
- A node that has hung keeps its connections open. So requests to a node that has left the cluster are given up.
- Requests that cannot be repeated get a new connection. A kept one may be closed by the owner while a request is on its
  way, and then no one knows whether it was carried out.
"""

import asyncio
import binascii
import hmac
import socket
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from http import HTTPStatus
from typing import Literal
from uuid import uuid4

import aiohttp
import msgspec
import structlog
from aiohttp import WSCloseCode, WSMsgType, hdrs, web
from multidict import CIMultiDict
from yarl import URL

from config import Secret
from gateway.contract import Caller, Route
from gateway.errors import HeldElsewhere, Refused
from gateway.http.auth import AuthRateLimiter
from gateway.http.connections import HttpConnection
from gateway.http.responses import HttpError

log = structlog.get_logger(__name__)

FORWARDED = "X-Gatehouse-Forwarded"
"""In a request: another node forwards it. In a response: this node has accepted it as a forwarded one."""
CALLER = "X-Gatehouse-Caller"
NOT_HERE = "X-Gatehouse-Not-Here"
"""In a response with status 421: another node owns the conversation, or this one does not know the caller's token yet.
The request has had no effect."""
FORWARDED_CALLER = web.RequestKey("forwarded_caller", Caller)
"""The caller of a request that another node has forwarded to this one."""
IDEMPOTENCY_KEY = "Idempotency-Key"
_ADDED_KEY = web.RequestKey("idempotency_key", str)

DEADLINE = 12.0
"""How long to look for the owner of a conversation. A node that has died loses its conversations within that time."""
PATIENCE = 2.0
"""The same for a route that can do without the owner."""
CONNECT_TIMEOUT = 2.0
FETCH_TIMEOUT = 5.0
"""How long another node may take to answer a question about itself."""
MAX_LOSSES = 5
"""Owners of a conversation that may be lost during one request."""
FIRST_PAUSE = 0.05
MAX_PAUSE = 1.0
SEND_TIMEOUT = 30.0
"""A WebSocket whose peer reads nothing for so long is cut."""
CLOSE_TIMEOUT = 2.0
MAX_MESSAGE_SIZE = 4 * 1024 * 1024
"""Of a WebSocket's client. The channel has its own limit, which is lower."""
SAFE_METHODS = frozenset({"GET", "HEAD"})
UNREACHABLE = "The node that serves this conversation can't be reached. Please try again."
UNKNOWN_OUTCOME = "The node that serves this conversation was lost. It may have carried out this request."
WRONG_NODE = "The nodes of this cluster don't accept each other's requests. They need the same token."
SOCKET_REFUSED = "The node that serves this conversation refused the connection."
LOST = b"The node that served this conversation was lost."
RETRY_AFTER = {"Retry-After": "1"}

_HOP_BY_HOP = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
_OF_FIRST_NODE = frozenset(name.lower() for name in (hdrs.HOST, hdrs.AUTHORIZATION, hdrs.COOKIE, CALLER, FORWARDED))
"""Headers of a request that mean something only where it arrived first."""

_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
"""A machine that has lost its power closes no connection. With these options, it is noticed after 25 seconds."""

_Socket = web.WebSocketResponse[Literal[False]] | aiohttp.ClientWebSocketResponse[Literal[False]]


def idempotency_key(request: web.Request) -> str | None:
    """Return the key of a request: the client's, or the one that forwarding it has added."""
    return request.headers.get(IDEMPOTENCY_KEY, request.get(_ADDED_KEY))


class NodeLost(ConnectionError):
    """A node has left the cluster while a request to it was under way."""


class RequestLost(Exception):
    """The owner was lost while it handled a request that may be repeated."""


class Forwarder:
    """Sends requests to other nodes. `close` ends it.

    `locate` returns the base URL of the node that owns a scope, and None if this node owns it. It waits for a new owner
    by itself, and raises `HeldElsewhere` if none comes in time. `token` returns the token that all nodes share. Its
    holder may act for every caller, also for those of the control socket. `moves` returns a number that changes when
    this node loses conversations.
    """

    def __init__(
        self,
        locate: Callable[[str], Awaitable[str | None]],
        token: Callable[[], Secret],
        *,
        moves: Callable[[], int] = lambda: 0,
        deadline: float = DEADLINE,
    ) -> None:
        self.deadline = deadline
        self._moves = moves
        self._in_use: dict[str, set[asyncio.Timeout]] = {}
        """Requests under way, by the URL of their node."""
        self._locate = locate
        self._token = token
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        """By whether they keep connections for further requests."""
        self._rate_limiter = AuthRateLimiter(time.monotonic)

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    def is_node(self, bearer: str, remote: str | None, *, is_known: Callable[[], bool], is_proxied: bool) -> bool:
        """Return whether a credential is the token of the nodes. Raises `TooManyAttempts` after too many wrong ones.

        Without the limit, a client could guess the token here. It is not the limit for people: a proxy may run on the
        machine of a node, and then their wrong passwords must not stop the requests of that node. `is_known` returns
        whether the credential is another valid one, which does not count as wrong.
        """

        def check() -> bool | None:
            return True if self._is_token(bearer) else False if is_known() else None

        return self._rate_limiter.attempt(remote, check, is_proxied=is_proxied) is True

    def _is_token(self, bearer: str) -> bool:
        digests = (sha256(each.encode(errors="replace")).digest() for each in (bearer, self._token().reveal()))
        return hmac.compare_digest(*digests)

    def drop(self, node: str) -> None:
        """Give up all requests to a node that has left the cluster."""
        for request in self._in_use.pop(node, ()):
            request.reschedule(asyncio.get_running_loop().time())

    async def handle(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        """Run the handler of a route. Raises `HeldElsewhere` if its conversation is not here, or not any more."""
        if route.takes_key and idempotency_key(request) is None:
            request[_ADDED_KEY] = uuid4().hex  # Now, because the handler may lose the conversation after it has begun.
        moves = self._moves()
        try:
            return await route.handle(request, caller)
        except (HttpError, Refused) as error:
            is_missing = isinstance(error, Refused) or error.status in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}
            if not is_missing or moves == self._moves() or request.writer.output_size > 0 or route.takes_file:
                raise
        return await route.handle(request, caller)

    async def forward(
        self, request: web.Request, route: Route, caller: Caller, held: HeldElsewhere
    ) -> web.StreamResponse:
        """Return the response of the owner, or that of this node if it has become the owner.

        Raises `HeldElsewhere` and `HttpError` if there is none.
        """
        if route.handle_elsewhere is None:
            return await self._forward(request, route, caller, held.scope, self.deadline)
        try:
            return await self._forward(request, route, caller, held.scope, PATIENCE)
        except HeldElsewhere:
            return await route.handle_elsewhere(request, caller)

    async def _forward(
        self, request: web.Request, route: Route, caller: Caller, scope: str, patience: float
    ) -> web.StreamResponse:
        is_upgrade = request.method == "GET" and request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"
        send = self._send_socket if is_upgrade else self._send
        clock = asyncio.get_running_loop().time
        until, pause, losses = clock() + patience, FIRST_PAUSE, 0
        while True:
            try:
                async with asyncio.timeout_at(until):
                    node = await self._locate(scope)
            except TimeoutError as error:
                raise HeldElsewhere(scope) from error
            try:
                found = self.handle(request, route, caller) if node is None else send(request, route, caller, node)
                response = await found
            except HeldElsewhere as again:  # This node has lost it before it could handle the request.
                response, scope = None, again.scope
            except RequestLost:  # It may have been under way for a while, and the next owner has its own time.
                response, losses = None, losses + 1
                if losses < MAX_LOSSES:
                    until, pause = clock() + patience, FIRST_PAUSE
            if response is not None:
                return response
            if clock() + pause >= until:
                if route.handle_elsewhere is not None:
                    raise HeldElsewhere(scope)
                raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, UNREACHABLE, headers=RETRY_AFTER)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    async def fetch(self, node: str, path: str, caller: Caller) -> bytes | None:
        """Return what another node answers to a GET of `caller` about itself. None if it can't be reached in time."""
        headers = {
            hdrs.AUTHORIZATION: f"Bearer {self._token().reveal()}",
            CALLER: encode_caller(caller),
            FORWARDED: "1",
        }
        try:
            async with asyncio.timeout(FETCH_TIMEOUT), self._using(node):
                session = self._session(keeps_connections=True)
                url = URL(f"{node.rstrip('/')}{path}", encoded=True)
                async with session.get(url, headers=headers, allow_redirects=False) as response:
                    is_answer = response.status == HTTPStatus.OK and FORWARDED in response.headers
                    return await response.read() if is_answer else None
        except (aiohttp.ClientError, OSError) as error:
            log.info("node_unreachable", node=node, route=path.partition("?")[0], reason=_reason(error, URL(node)))
            return None

    async def _send(self, request: web.Request, route: Route, caller: Caller, node: str) -> web.StreamResponse | None:
        """Send a request to `node`, and return its response. None if it has had no effect and may be repeated."""
        is_repeatable = request.method in SAFE_METHODS or route.takes_key or route.drops_repeats
        headers = self._headers(request, caller)
        body: bytes | AsyncIterator[bytes] | None = None
        has_begun = False

        async def upload() -> AsyncIterator[bytes]:
            nonlocal has_begun
            has_begun = True
            async for chunk in request.content.iter_any():
                yield chunk

        if route.takes_file:
            body = upload()
        elif request.method not in SAFE_METHODS:
            body = await request.read()  # The guard has read it.
        if not route.takes_file:
            headers.pop(hdrs.CONTENT_LENGTH, None)
        try:
            async with self._using(node):
                response = await self._session(keeps_connections=is_repeatable).request(
                    request.method, _url(node, request), data=body, headers=headers, allow_redirects=False
                )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            log.info("node_unreachable", node=node, route=route.path, reason=_reason(error, _url(node, request)))
            return None
        except (aiohttp.ClientError, OSError) as error:
            log.warning(
                "forwarded_request_lost", node=node, route=route.path, reason=_reason(error, _url(node, request))
            )
            if is_repeatable:
                raise RequestLost from error
            raise HttpError(HTTPStatus.BAD_GATEWAY, UNKNOWN_OUTCOME) from error
        async with response:
            if NOT_HERE in response.headers:
                if has_begun:  # The file cannot be read a second time.
                    raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, UNREACHABLE, headers=RETRY_AFTER)
                return None
            if FORWARDED not in response.headers:
                log.warning("forwarded_request_rejected", node=node, status=response.status)
                raise HttpError(HTTPStatus.BAD_GATEWAY, WRONG_NODE)
            try:
                async with self._using(node):
                    return await _copy(response, request, node)
            except NodeLost:
                if request.transport is not None:
                    request.transport.abort()
                raise

    async def _send_socket(
        self, request: web.Request, route: Route, caller: Caller, node: str
    ) -> web.StreamResponse | None:
        """Connect a WebSocket to `node`, and copy messages until one end closes. None if the node refers elsewhere."""
        headers = self._headers(request, caller)
        for name in [name for name in headers if name.lower().startswith("sec-websocket-")]:
            headers.popall(name, None)
        try:
            async with self._using(node):
                owner = await self._session(keeps_connections=False).ws_connect(
                    _url(node, request),
                    headers=headers,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT),
                    autoping=False,
                    autoclose=False,
                    max_msg_size=0,
                    decode_text=False,
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.headers is not None and NOT_HERE in error.headers:
                return None
            log.warning("forwarded_request_rejected", node=node, status=error.status)
            if error.headers is None or FORWARDED not in error.headers:
                raise HttpError(HTTPStatus.BAD_GATEWAY, WRONG_NODE) from error
            if error.status < HTTPStatus.BAD_REQUEST:
                return await self._send(request, route, caller, node)  # The route has no WebSocket.
            raise HttpError(HTTPStatus(error.status), SOCKET_REFUSED) from error
        except (aiohttp.ClientError, OSError) as error:
            log.info("node_unreachable", node=node, route=route.path, reason=_reason(error, _url(node, request)))
            return None
        client = web.WebSocketResponse[Literal[False]](
            timeout=CLOSE_TIMEOUT,
            autoping=False,
            autoclose=False,
            compress=False,
            max_msg_size=MAX_MESSAGE_SIZE,
            decode_text=False,
        )
        code, reason = int(WSCloseCode.GOING_AWAY), b""  # These stay if this task is cancelled: the server is closing.
        try:
            await client.prepare(request)
            try:
                async with self._using(node):
                    code, reason = await _connect(client, owner)
            except NodeLost:
                code, reason = WSCloseCode.SERVICE_RESTART, LOST
            finally:
                try:
                    async with asyncio.timeout(CLOSE_TIMEOUT):
                        await client.close(code=code, message=reason)
                except TimeoutError:
                    if request.transport is not None:
                        request.transport.abort()
        finally:
            await owner.close(code=code, message=reason)
        return client

    @asynccontextmanager
    async def _using(self, node: str) -> AsyncIterator[None]:
        """Raise `NodeLost` when the node is dropped while inside."""
        dropped = asyncio.timeout(None)
        self._in_use.setdefault(node, set()).add(dropped)
        try:
            async with dropped:
                yield
        except TimeoutError as error:
            if not dropped.expired():
                raise
            raise NodeLost("The node has left the cluster.") from error
        finally:
            if (under_way := self._in_use.get(node)) is not None:
                under_way.discard(dropped)
                if not under_way:
                    del self._in_use[node]

    def _headers(self, request: web.Request, caller: Caller) -> "CIMultiDict[str]":
        dropped = _OF_FIRST_NODE | _hop_by_hop(request.headers)
        headers = CIMultiDict((name, value) for name, value in request.headers.items() if name.lower() not in dropped)
        headers[hdrs.AUTHORIZATION] = f"Bearer {self._token().reveal()}"
        headers[CALLER] = encode_caller(caller)
        headers[FORWARDED] = "1"
        if _ADDED_KEY in request:
            headers[IDEMPOTENCY_KEY] = request[_ADDED_KEY]
        return headers

    def _session(self, *, keeps_connections: bool) -> aiohttp.ClientSession:
        if keeps_connections not in self._sessions:
            self._sessions[keeps_connections] = aiohttp.ClientSession(
                # The limits on the connections of clients limit these as well.
                connector=aiohttp.TCPConnector(limit=0, force_close=not keeps_connections, socket_factory=_open_socket),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT),
                skip_auto_headers=(hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE),
                auto_decompress=False,
                middlewares=(_send_once,),
            )
        return self._sessions[keeps_connections]


def encode_caller(caller: Caller) -> str:
    return urlsafe_b64encode(msgspec.json.encode(caller)).decode()  # Names may have any characters.


def decode_caller(headers: Mapping[str, str]) -> Caller:
    """Return the caller in the headers of a node. Raises `HttpError` if it has none that this version can read."""
    try:
        return msgspec.json.decode(urlsafe_b64decode(headers.get(CALLER, "")), type=Caller)
    except (binascii.Error, ValueError) as error:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"The header {CALLER} is invalid.") from error


async def _copy(response: aiohttp.ClientResponse, request: web.Request, node: str) -> web.StreamResponse:
    """Send the response of another node to the client, each piece at once."""
    dropped = _hop_by_hop(response.headers) | {FORWARDED.lower()}
    headers = CIMultiDict((name, value) for name, value in response.headers.items() if name.lower() not in dropped)
    copy = web.StreamResponse(status=response.status, reason=response.reason, headers=headers)
    connection = request.protocol
    assert isinstance(connection, HttpConnection)  # noqa: S101 - `ConnectionServer` makes no others.
    if connection.is_ending or not connection.is_authenticated:
        copy.force_close()  # As `HttpApp` does for a response that has not begun.
    await copy.prepare(request)
    while True:
        try:
            piece = await response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            # The client must not take what it has for the whole response.
            log.warning("forwarded_response_lost", node=node, reason=_reason(error, response.url))
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("The owner was lost before the end of its response.") from error
        if not piece:
            break
        await copy.write(piece)
    await copy.write_eof()
    return copy


async def _connect(client: _Socket, owner: _Socket) -> tuple[int, bytes]:
    """Copy messages between two WebSockets until one closes. Return the code and the reason for closing the other."""
    async with asyncio.TaskGroup() as group:
        to_owner = group.create_task(_pump(client, owner), name="http:forward_to_owner")
        to_client = group.create_task(_pump(owner, client), name="http:forward_to_client")
        done, waiting = await asyncio.wait((to_owner, to_client), return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
    closed = next((task.result() for task in done if task.result() is not None), None)
    if closed is not None:
        return closed
    # The owner is gone, or the client is, and then the code does not matter. A client connects again on this code.
    return WSCloseCode.SERVICE_RESTART, LOST


async def _pump(source: _Socket, sink: _Socket) -> tuple[int, bytes] | None:
    """Copy messages. Return the code and the reason if `source` closes, and None if a connection is lost.

    A slow `sink` slows `source` down: the next message is read when this one has been written.
    """
    while True:
        message = await source.receive()
        match message.type:
            case WSMsgType.TEXT | WSMsgType.BINARY | WSMsgType.PING | WSMsgType.PONG:
                try:
                    async with asyncio.timeout(SEND_TIMEOUT):
                        await sink.send_frame(message.data, message.type)
                except (ConnectionError, TimeoutError):
                    return None
            case WSMsgType.CLOSE:
                # A frame without a code arrives as 0. These codes must not be sent.
                unsendable = {0, WSCloseCode.ABNORMAL_CLOSURE, 1005}
                code = WSCloseCode.OK if message.data in unsendable else message.data
                return code, (message.extra or "").encode()
            case WSMsgType.CLOSING:  # Only the server does this, when it stops.
                return WSCloseCode.GOING_AWAY, b""
            case WSMsgType.ERROR if isinstance(message.data, aiohttp.WebSocketError):
                return message.data.code, b""
            case _:
                return None


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from repeating a DELETE whose connection was lost. It does so after errors of these classes."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(str(error)) from error


def _open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # Some of them exist only on Linux.
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return opened


def _hop_by_hop(headers: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the headers that are for one connection only."""
    return _HOP_BY_HOP | {name.strip().lower() for name in headers.get(hdrs.CONNECTION, "").split(",")}


def _reason(error: Exception, url: URL) -> str:
    """Return what went wrong, without the URL of the request: a path may contain secrets."""
    text = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return text.replace(str(url), str(url.origin()))


def _url(node: str, request: web.Request) -> URL:
    return URL(f"{node.rstrip('/')}{request.rel_url.raw_path_qs}", encoded=True)

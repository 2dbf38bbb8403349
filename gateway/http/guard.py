"""Checks of every request before its handler runs: Host, Origin, credential, access, content type and body."""

import asyncio
import contextlib
import os
import pwd
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from aiohttp import HttpVersion11, web
from msgspec import Struct

from gateway.contract import Access, Caller, Route
from gateway.http.auth import Auth
from gateway.http.connections import EXPECTATION, HttpConnection
from gateway.http.forwarding import CALLER, FORWARDED, FORWARDED_CALLER, NOT_HERE, Forwarder, decode_caller
from gateway.http.request_rate import RequestRate
from gateway.http.responses import NO_JSON, HttpError, HttpLimits, is_under

IS_PROXIED = web.RequestKey("is_proxied", bool)
"""True if a request came through a proxy, so that its address is the proxy's."""

OWNERS_ONLY = (
    "This needs the token. To sign a browser in, run `gatehouse link`. "
    "Programs send the header `Authorization: Bearer <token>`."
)
PROGRAMS_ONLY = (
    "This needs a valid API token in the header `Authorization: Bearer <token>`. "
    "Create one with `gatehouse token create`."
)
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
READY_POLL = 0.1
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_decode_object = msgspec.json.Decoder(dict[str, object]).decode


class AllowedHosts(Struct, frozen=True, kw_only=True):
    """The values of the Host header that are ours. With DNS rebinding, an attacker's host name points to us."""

    direct: frozenset[str]
    proxied: frozenset[str]
    """Names from `http.allowed_hosts`, which proxies and other machines use."""

    @classmethod
    def of(cls, host: str, port: int, allowed: Sequence[str]) -> "AllowedHosts":
        """`host` is a name or an address in the form of a URL. An allowed host may include the port of a proxy."""
        names = (*LOOPBACK_NAMES, host.lower())
        direct = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())  # noqa: PLR2004 - HTTP's port.
        proxied = {name.lower() for name in allowed} | {f"{name.lower()}:{port}" for name in allowed}
        return cls(direct=frozenset(direct), proxied=frozenset(proxied))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Finds out who is calling, and raises `HttpError` if the request is not allowed."""

    auth: Auth
    find_token: Callable[[str], Caller | None]
    """Returns the program that an API token belongs to. None means a wrong token, and an anonymous caller one that
    was valid once."""
    rate: RequestRate
    is_ready: Callable[[], bool]
    """Whether the routes of the API can be used yet."""
    hosts: AllowedHosts
    users: Mapping[int, str]
    """Who may use the control socket: user names by uid."""
    limits: HttpLimits
    max_body_bytes: int
    knows_token: Callable[[str], bool] = lambda _: True
    """Whether the API token with an id is known and valid at this node."""
    forwarder: Forwarder | None = None
    """None if this node is the only one. Then no request counts as forwarded."""

    def check_address(self, request: web.Request, connection: HttpConnection) -> None:
        """Refuse a foreign Host or Origin, on every path. The node that forwards a request has checked them."""
        if request.transport is None:
            # Without it the request has no remote address, and would pass for a local one.
            raise ConnectionResetError("The client has gone.")
        hosts = request.headers.getall("Host", [])
        host = hosts[0].lower() if hosts else ""
        # Clients can forge these headers, but that only makes us stricter with them.
        is_behind_proxy = "X-Forwarded-For" in request.headers or "Forwarded" in request.headers
        if self.forwarder is not None and FORWARDED in request.headers and not connection.is_control:
            request[IS_PROXIED] = is_behind_proxy or host not in self.hosts.direct
            if self._is_from_node(request, self.forwarder):
                request[FORWARDED_CALLER] = decode_caller(request.headers)
                return
        is_ours = len(hosts) == 1 and (host in self.hosts.direct or host in self.hosts.proxied)
        if not is_ours and not connection.is_control:
            raise HttpError(
                HTTPStatus.MISDIRECTED_REQUEST,
                "This host name is not allowed. To allow it, add it to http.allowed_hosts.",
            )
        request[IS_PROXIED] = is_behind_proxy or (host in self.hosts.proxied and host not in self.hosts.direct)
        # A proxy may terminate TLS in front of us.
        schemes = ("http", "https") if host in self.hosts.proxied else ("http",)
        origins = request.headers.getall("Origin", [])
        if origins and (len(origins) > 1 or origins[0].lower() not in {f"{scheme}://{host}" for scheme in schemes}):
            raise HttpError(HTTPStatus.FORBIDDEN, "Requests from pages of other sites are refused.")
        expectation = request.get(EXPECTATION)
        if isinstance(expectation, str) and expectation.lower() != "100-continue":
            raise HttpError(HTTPStatus.EXPECTATION_FAILED, "The only `Expect` that is supported is `100-continue`.")

    async def admit(self, request: web.Request, route: Route, connection: HttpConnection) -> Caller:
        """Return the caller of `route`, with the body read."""
        is_forwarded = FORWARDED_CALLER in request
        caller = request[FORWARDED_CALLER] if is_forwarded else self._identify(request, route, connection)
        if is_forwarded and caller.token and not self.knows_token(caller.token):
            # It was created or revoked a moment ago. This node would not know to what the token is bound, so the first
            # one has to try again.
            raise HttpError(
                HTTPStatus.MISDIRECTED_REQUEST, "This node does not know the API token.", headers={NOT_HERE: "1"}
            )
        is_known = is_forwarded or caller.is_owner or bool(caller.token)
        if is_known and not is_forwarded and not connection.is_control and is_under(request.path, "/api", "/v1"):
            self.rate.count(caller.token, request)
        if route.access is Access.CONTROL and not connection.is_control and not is_forwarded:
            raise web.HTTPNotFound
        if route.access is Access.CHANNEL:
            if route.knows is None or not route.knows(request.headers):
                raise HttpError(HTTPStatus.UNAUTHORIZED, "Only the platform that this webhook belongs to may call it.")
        elif route.access is not Access.PUBLIC:
            _check_access(caller, route)
        if is_known and not connection.authenticate(caller.token):
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections are open. Close some and try again.")
        if route.access is Access.API and not await self._becomes_ready(route):
            raise HttpError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "The gateway is starting. Try again in a moment.",
                headers={"Retry-After": "1"},
            )
        # Without asking us first, a page of another site can send forms and plain text. It cannot send these types.
        if route.takes_file:
            if request.content_type != "application/octet-stream" or "Content-Encoding" in request.headers:
                raise HttpError(
                    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                    "Send the file unchanged, with `Content-Type: application/octet-stream`.",
                )
        # No page of another site can send the header `Authorization` either.
        elif (
            request.method not in SAFE_METHODS
            and not route.takes_any_type
            and (request.body_exists or not _bearer(request))
        ):
            is_json = request.content_type == "application/json" and (request.charset or "utf-8").lower() == "utf-8"
            if not is_json or "Content-Encoding" in request.headers:
                raise HttpError(
                    HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send JSON in UTF-8, with `Content-Type: application/json`."
                )
        if request.get(EXPECTATION) is not None and request.version >= HttpVersion11:
            # The client waits for this before it sends the body.
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # The response has not begun.
        if request.method not in SAFE_METHODS and not route.takes_file:
            await self._read_body(request, is_json=not route.takes_any_type)
        connection.is_being_served = True
        return caller

    async def _becomes_ready(self, route: Route) -> bool:
        """Return whether the API can be used.

        A stream waits for that: a browser that gets an error never retries. So does every request in a cluster, where
        the client has met a node that starts while others serve.
        """
        if route.is_stream or self.forwarder is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.limits.handler):
                    while not self.is_ready():  # noqa: ASYNC110 - few streams wait, and only while the gateway starts.
                        await asyncio.sleep(READY_POLL)
        return self.is_ready()

    def _is_from_node(self, request: web.Request, forwarder: Forwarder) -> bool:
        """Return whether another node forwards a request. Raises `TooManyAttempts` after too many wrong credentials."""
        bearer = _bearer(request)
        if not bearer or CALLER not in request.headers:
            return False

        def is_known() -> bool:
            return self.auth.is_token(bearer) or self.find_token(bearer) is not None

        return forwarder.is_node(bearer, request.remote, is_known=is_known, is_proxied=request[IS_PROXIED])

    def _identify(self, request: web.Request, route: Route, connection: HttpConnection) -> Caller:
        """Return the owner, a program or an anonymous caller.

        Raises `TooManyAttempts` after too many wrong credentials.
        """
        if connection.is_control:
            name = self.users.get(_peer_uid(request.get_extra_info("socket")))
            return Caller() if name is None else Caller(name=name, is_owner=True)
        if route.access is Access.CHANNEL:
            return Caller()
        # A token in the query is never read: queries end up in logs and in browser histories.
        is_attempt, bearer = "Authorization" in request.headers, _bearer(request)
        # A cookie counts only if our own page sent it. A browser sends no Origin with a page's own GET, but then sends
        # Sec-Fetch-Site, which no script can set.
        is_own_page = "Origin" in request.headers or request.headers.get("Sec-Fetch-Site") == "same-origin"
        cookie = request.cookies.get(cookie_name(request, self.auth)) if is_own_page else None

        def check() -> Caller | None:
            """Return None for a wrong credential, and an anonymous caller for one that was valid once."""
            if bearer and self.auth.is_token(bearer):
                return Caller(name="owner", is_owner=True)
            program = self.find_token(bearer) if bearer else None
            if program is not None and program.token:
                return program
            if cookie is None or not self.auth.is_signed(cookie):
                return program
            return Caller() if self.auth.is_expired(cookie) else Caller(name="owner", is_owner=True)

        # A browser sends an old cookie with every file of the page, and needs the page to get a new one. So a wrong
        # cookie on a public route is no attempt.
        if not is_attempt and (cookie is None or route.access is Access.PUBLIC):
            return check() or Caller()
        found = self.auth.rate_limiter.attempt(request.remote, check, is_proxied=request[IS_PROXIED])
        return found or Caller()

    async def _read_body(self, request: web.Request, *, is_json: bool) -> None:
        """Read the whole body, so that a handler never waits for it. `request.json()` then just works."""
        if (request.content_length or 0) > self.max_body_bytes:
            raise web.HTTPRequestEntityTooLarge(self.max_body_bytes)
        try:
            # A body that came with its header need not be waited for.
            async with asyncio.timeout(None if request.content.is_eof() else self.limits.body):
                body = await request.read()
        except TimeoutError as error:
            raise HttpError(HTTPStatus.REQUEST_TIMEOUT, "The body took too long to arrive.") from error
        except web.RequestPayloadError as error:
            raise HttpError(HTTPStatus.BAD_REQUEST, "The body doesn't match its headers.") from error
        if not is_json:
            return
        try:
            # This also refuses lone surrogates, which none of our files could store.
            _decode_object(body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HttpError(HTTPStatus.BAD_REQUEST, NO_JSON) from error


def _bearer(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _check_access(caller: Caller, route: Route) -> None:
    """Raise `HttpError` if the route is not for this caller. API tokens open only the routes of the API."""
    is_api = route.access is Access.API
    if caller.is_owner or (is_api and caller.token and (route.scope is None or caller.may(route.scope))):
        return
    if not caller.token:
        raise HttpError(
            HTTPStatus.UNAUTHORIZED,
            PROGRAMS_ONLY if is_api else OWNERS_ONLY,
            headers={"WWW-Authenticate": "Bearer"},
        )
    if not is_api or route.scope is None:
        raise HttpError(HTTPStatus.FORBIDDEN, "API tokens don't work here. This needs the token of the owner.")
    raise HttpError(
        HTTPStatus.FORBIDDEN,
        f"This token lacks the scope `{route.scope}`. Create one that has it with `gatehouse token create`.",
        extra={"scope": route.scope},
    )


def cookie_name(request: web.Request, auth: Auth) -> str:
    """Browsers share cookies between the ports of a host. The port in the name keeps two gateways apart.

    The nodes of a cluster may have different ports behind a load balancer, and use the same cookie.
    """
    if auth.shared_label:
        return f"gatehouse_{auth.shared_label}"
    name = request.get_extra_info("sockname")
    return f"gatehouse_{name[1]}" if isinstance(name, tuple) else "gatehouse"


def control_users() -> dict[int, str]:
    """Return the names of this user and of root by uid. Reads the user database, so do not call it on the loop."""
    names = {}
    for uid in (0, os.getuid()):
        try:
            names[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:  # A container's user often has no name.
            names[uid] = str(uid)
    return names


def _peer_uid(connection: socket.socket) -> int:
    """Ask the kernel for the user at the other end of the control socket."""
    if not hasattr(socket, "SO_PEERCRED"):
        # On systems other than Linux, the socket's mode 0600 keeps others out.
        return os.getuid()
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])

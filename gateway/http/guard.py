"""What is asked of every request before its handler runs, in the order of `Gate.admit`."""

import asyncio
import os
import pwd
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from aiohttp import web

from gateway.contract import Access, Caller, Route
from gateway.http.auth import Auth
from gateway.http.connections import Visitors, is_control
from gateway.http.responses import NO_JSON, HttpError, HttpLimits

__all__ = ["IS_PROXIED", "AllowedHosts", "Guard", "control_users", "cookie_name", "is_upgrade"]

IS_PROXIED = web.RequestKey("is_proxied", bool)
"""Whether a request came through a proxy, so that its address is the proxy's."""

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedHosts:
    """The values of the Host header that are ours; any other means that a foreign name was made to point here."""

    direct: frozenset[str]
    proxied: frozenset[str]

    @classmethod
    def of(cls, host: str, port: int, allowed: Sequence[str]) -> "AllowedHosts":
        """`host` is a name or address as it stands in a URL; an allowed host may carry the port of a proxy."""
        names = (*LOOPBACK_NAMES, host.lower())
        direct = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())  # noqa: PLR2004 - HTTP's port.
        proxied = {name.lower() for name in allowed} | {f"{name.lower()}:{port}" for name in allowed}
        return cls(direct=frozenset(direct), proxied=frozenset(proxied))

    def has(self, host: str) -> bool:
        return host in self.direct or host in self.proxied

    def is_proxied(self, host: str) -> bool:
        """Tell whether only a proxy, or a machine elsewhere, asks for us by this name."""
        return host in self.proxied and host not in self.direct

    def origins(self, host: str) -> frozenset[str]:
        """Return the origins of our own pages on `host`; a proxy may have put TLS before us."""
        schemes = ("http", "https") if host in self.proxied else ("http",)
        return frozenset(f"{scheme}://{host}" for scheme in schemes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Finds out who is calling: address, credential, access, room, content type, body. A refusal says why."""

    auth: Auth
    hosts: AllowedHosts
    users: Mapping[int, str]
    """Who may use the control socket: user names by uid."""
    visitors: Visitors
    limits: HttpLimits
    max_body_bytes: int

    async def admit(self, request: web.Request, route: Route) -> Caller:
        caller = self._identify(request, route)
        _check_access(request, route, caller)
        _check_room(request, caller, self.visitors)
        if route.takes_file:
            _check_file_type(request)
        elif request.method not in SAFE_METHODS:
            _check_content_type(request)
            await self._read_body(request)
        self.visitors.serve(request.protocol)
        return caller

    def check_address(self, request: web.Request) -> None:
        """Refuse a foreign Host or Origin, whatever the path."""
        self._check_host(request)
        self._check_origin(request)

    def _check_host(self, request: web.Request) -> None:
        hosts = request.headers.getall("Host", [])
        if _is_local(request) or (len(hosts) == 1 and self.hosts.has(hosts[0].lower())):
            # What a caller says of himself here can only make us stricter.
            is_forwarded = "X-Forwarded-For" in request.headers or "Forwarded" in request.headers
            request[IS_PROXIED] = is_forwarded or self.hosts.is_proxied(hosts[0].lower() if hosts else "")
            return
        raise HttpError(
            HTTPStatus.MISDIRECTED_REQUEST,
            "Gatehouse does not go by this host name; add it to http.allowed_hosts if it should.",
        )

    def _check_origin(self, request: web.Request) -> None:
        origins = request.headers.getall("Origin", [])
        own = self.hosts.origins(request.headers.get("Host", "").lower())
        if origins and (len(origins) > 1 or origins[0].lower() not in own):
            raise HttpError(HTTPStatus.FORBIDDEN, "Requests from pages of other sites are refused.")

    def _identify(self, request: web.Request, route: Route) -> Caller:
        if _is_local(request):
            name = self.users.get(_peer_uid(request.get_extra_info("socket")))
            return Caller() if name is None else Caller(name=name, is_owner=True)
        if route.access is Access.CHANNEL:
            return Caller()
        bearer, cookie = _bearer(request), _trusted_cookie(request)
        # A browser sends an old cookie with every part of the page, and has to get the page to get a new one.
        is_guess = bearer is not None or (cookie is not None and route.access is not Access.PUBLIC)
        if not is_guess:
            return self._owner(bearer, cookie) or Caller()
        found = self.auth.guesses.judge(
            request.remote, lambda: self._owner(bearer, cookie), is_proxied=request[IS_PROXIED]
        )
        return found or Caller()

    def _owner(self, bearer: str | None, cookie: str | None) -> Caller | None:
        """Return None for a wrong guess, and a stranger for what was right once."""
        if bearer is not None and self.auth.is_token(bearer):
            return Caller(name="owner", is_owner=True)
        if cookie is None or not self.auth.is_cookie(cookie):
            return None
        return Caller() if self.auth.is_over(cookie) else Caller(name="owner", is_owner=True)

    async def _read_body(self, request: web.Request) -> None:
        """Take the whole body in, so that a handler never waits for one; `request.json()` then just works."""
        if (request.content_length or 0) > self.max_body_bytes:
            raise web.HTTPRequestEntityTooLarge(self.max_body_bytes)
        try:
            async with asyncio.timeout(self.limits.body):
                body = await request.read()
        except TimeoutError as late:
            raise HttpError(HTTPStatus.REQUEST_TIMEOUT, "The body took too long to arrive.") from late
        except web.RequestPayloadError as broken:
            raise HttpError(HTTPStatus.BAD_REQUEST, "The body is not what its headers say.") from broken
        _check_json(body)


def is_upgrade(request: web.Request) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


def cookie_name(request: web.Request) -> str:
    """Browsers share cookies between the ports of a host; the port in the name keeps two gateways apart."""
    name = request.get_extra_info("sockname")
    return f"gatehouse_{name[1]}" if isinstance(name, tuple) else "gatehouse"


def _is_local(request: web.Request) -> bool:
    if request.transport is None:
        raise ConnectionResetError("The client has gone.")
    return is_control(request.transport)


def control_users() -> dict[int, str]:
    """Name ourselves and root, who may do what we may. Reads the system's users, so not for the event loop."""
    return {uid: _user_name(uid) for uid in (0, os.getuid())}


def _peer_uid(connection: socket.socket) -> int:
    """Ask the kernel who is at the other end of the control socket."""
    if not hasattr(socket, "SO_PEERCRED"):
        # Elsewhere than on Linux the socket's mode 0600 is what keeps others out.
        return os.getuid()
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        # A container's user often has no name.
        return str(uid)


def _bearer(request: web.Request) -> str | None:
    """Return the guess at the token, if there is one. The query is never read: it ends up in logs and histories."""
    header = request.headers.get("Authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _trusted_cookie(request: web.Request) -> str | None:
    """Return the cookie if our own page sent it.

    A browser sends no Origin with a page's own GET, but says so in Sec-Fetch-Site, which no script can set.
    """
    if "Origin" not in request.headers and request.headers.get("Sec-Fetch-Site") != "same-origin":
        return None
    return request.cookies.get(cookie_name(request))


def _check_access(request: web.Request, route: Route, caller: Caller) -> None:
    if route.access is Access.CONTROL and not _is_local(request):
        raise web.HTTPNotFound
    if route.access is Access.CHANNEL:
        if route.knows is None or not route.knows(request.headers):
            raise HttpError(HTTPStatus.UNAUTHORIZED, "This is for the platform that it belongs to.")
        return
    if route.access is not Access.PUBLIC and not caller.is_owner:
        raise HttpError(
            HTTPStatus.UNAUTHORIZED,
            "This needs the token: run `gatehouse link` for a link that lets a browser in, "
            "or send the header `Authorization: Bearer <token>`.",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _check_room(request: web.Request, caller: Caller, visitors: Visitors) -> None:
    if caller.is_owner and not visitors.admit(request.protocol):
        raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections are open; close some and try again.")


def _check_content_type(request: web.Request) -> None:
    """Insist on JSON: a page of another site can send forms and plain text without asking, but not that."""
    is_json = request.content_type == "application/json" and (request.charset or "utf-8").lower() == "utf-8"
    if not is_json or "Content-Encoding" in request.headers:
        raise HttpError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send JSON in UTF-8, with `Content-Type: application/json`.")


def _check_file_type(request: web.Request) -> None:
    """Insist on a type that, like JSON, a page of another site cannot send without asking."""
    if request.content_type != "application/octet-stream" or "Content-Encoding" in request.headers:
        raise HttpError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send the file as it is, with `Content-Type: application/octet-stream`."
        )


def _check_json(body: bytes) -> None:
    """Refuse what a handler's `json()` would choke on, and lone surrogates, which no file of ours could hold."""
    try:
        msgspec.json.decode(body or b"{}", type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(HTTPStatus.BAD_REQUEST, NO_JSON) from error

"""The server's own routes: sign-in and sign-out of browsers, liveness and readiness."""

from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from typing import Protocol

from aiohttp import web
from msgspec import Struct

from gateway.contract import Access, Caller, Route
from gateway.errors import Refused
from gateway.http.app import abort_websockets
from gateway.http.auth import COOKIE_LIFETIME, Auth, cookie_id
from gateway.http.guard import IS_PROXIED, cookie_name
from gateway.http.responses import HttpError


class ChannelHealth(Struct, frozen=True, kw_only=True):
    name: str
    account: str
    state: str
    reason: str
    since: datetime
    last_error: str = ""
    """Why it was down the last time. It stays when the channel is up again."""
    last_error_at: datetime | None = None


class Health(Struct, frozen=True, kw_only=True):
    """The state that `/readyz` reports. `troubles` are problems outside of the channels.

    `warnings` are risks for the durability of messages: the gateway is ready, but degraded.
    """

    ready: bool
    channels: tuple[ChannelHealth, ...] = ()
    troubles: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        if not self.ready:
            return "not ready"
        return "degraded" if self.warnings else "ready"


class SignIns(Protocol):
    """Remembers sign-ins for all nodes of a cluster. Raises `HttpError` if that is not possible now."""

    async def use(self, code: str) -> bool:
        """Return True for the first call with a code, at whichever node."""

    async def revoke(self, cookie: str) -> None:
        """Make a cookie invalid at all nodes."""


def core_routes(
    *, auth: Auth, health: Callable[[], Health], url: Callable[[], str], sign_ins: SignIns | None = None
) -> list[Route]:
    """Return the server's own routes. `url` is a function, because the port is known only once the server runs.

    `sign_ins` are for a cluster.
    """

    async def exchange(request: web.Request, _: Caller) -> web.StreamResponse:
        """Exchange a single-use code for a cookie."""
        code = (await request.json()).get("code")
        cookie = auth.rate_limiter.attempt(
            request.remote,
            lambda: auth.redeem(code) if isinstance(code, str) else None,
            is_proxied=request[IS_PROXIED],
        )
        if cookie is None or (sign_ins is not None and not await sign_ins.use(code)):
            raise HttpError(
                HTTPStatus.UNAUTHORIZED,
                "This link has been used or has expired. Run `gatehouse link` for a new one.",
            )
        response = web.json_response({"status": "welcome"})
        response.set_cookie(
            cookie_name(request, auth),
            cookie,
            max_age=COOKIE_LIFETIME,
            path="/",
            httponly=True,
            samesite="Strict",
            # Behind a proxy with TLS, the browser must send the cookie only over TLS.
            secure=request.headers.get("Origin", "").startswith("https:"),
        )
        return response

    async def log_out(request: web.Request, _: Caller) -> web.StreamResponse:
        response = web.json_response({"status": "logged out"})
        name = cookie_name(request, auth)
        response.del_cookie(name, path="/", httponly=True, samesite="Strict")
        cookie = request.cookies.get(name, "")
        if sign_ins is not None and auth.is_signed(cookie) and not auth.is_expired(cookie):
            await sign_ins.revoke(cookie)  # First: if it fails, the browser is still signed in, and can try again.
        if auth.revoke(cookie):
            abort_websockets(request.app, auth, {cookie_id(cookie)})
        return response

    async def link(_request: web.Request, _: Caller) -> web.StreamResponse:
        if not url():
            raise Refused("This gateway has no port for browsers. Start it with `gatehouse run` to use a browser.")
        # Browsers never send the fragment of a URL to a server, so the code gets into no log.
        return web.json_response({"url": f"{url()}/#code={auth.mint_code()}"})

    async def whoami(_: web.Request, caller: Caller) -> web.StreamResponse:
        return web.json_response({"name": caller.name, "is_owner": caller.is_owner})

    async def healthz(_request: web.Request, _: Caller) -> web.StreamResponse:
        return web.json_response({"status": "alive"})

    async def readyz(_: web.Request, caller: Caller) -> web.StreamResponse:
        found = health()
        labelled = {
            channel.name if channel.account == "default" else f"{channel.name}:{channel.account}": channel
            for channel in found.channels
        }
        body: dict[str, object] = {"status": found.state}
        if caller.is_owner:
            body["channels"] = {
                label: {"state": channel.state, "reason": channel.reason, "since": channel.since.isoformat()}
                for label, channel in labelled.items()
            }
            body["troubles"] = list(found.troubles)
            body["warnings"] = list(found.warnings)
        else:  # The reasons are for the owner only.
            body["channels"] = {label: channel.state for label, channel in labelled.items()}
        status = HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return web.json_response(body, status=status)

    return [
        Route(method="POST", path="/auth/exchange", access=Access.PUBLIC, handle=exchange),
        Route(method="POST", path="/auth/logout", access=Access.OWNER, handle=log_out),
        Route(method="POST", path="/auth/link", access=Access.CONTROL, handle=link),
        Route(method="GET", path="/auth/whoami", access=Access.OWNER, handle=whoami),
        Route(method="GET", path="/healthz", access=Access.PUBLIC, handle=healthz),
        Route(method="GET", path="/readyz", access=Access.PUBLIC, handle=readyz),
    ]

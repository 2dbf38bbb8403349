"""The server's own routes: letting browsers in, and telling whether the gateway is well."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus

from aiohttp import web

from gateway.contract import Access, Caller, Route
from gateway.errors import Refused
from gateway.http.auth import COOKIE_LIFETIME, Auth
from gateway.http.guard import IS_PROXIED, cookie_name
from gateway.http.responses import HttpError

__all__ = ["ChannelHealth", "Health", "core_routes", "health_routes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelHealth:
    name: str
    account: str
    state: str
    reason: str
    since: datetime
    last_error: str = ""
    """Why it was down the last time, also after it has come up again."""
    last_error_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What `/readyz` tells. `troubles` are sentences about what is wrong outside the channels.

    `warnings` are about what messages survive: the gateway is ready, but not as well as it should be.
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


def core_routes(*, auth: Auth, health: Callable[[], Health], url: Callable[[], str]) -> list[Route]:
    """All of them. `url` is asked late, because the port is known only once the server has started."""
    return [*_AuthRoutes(auth=auth, url=url).routes(), *health_routes(health)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _AuthRoutes:
    """How browsers get in, and out again."""

    auth: Auth
    url: Callable[[], str]

    def routes(self) -> list[Route]:
        return [
            Route(method="POST", path="/auth/exchange", access=Access.PUBLIC, handle=self._exchange),
            Route(method="POST", path="/auth/logout", access=Access.OWNER, handle=self._log_out),
            Route(method="POST", path="/auth/link", access=Access.CONTROL, handle=self._link),
            Route(method="GET", path="/auth/whoami", access=Access.OWNER, handle=_whoami),
        ]

    async def _exchange(self, request: web.Request, _: Caller) -> web.StreamResponse:
        code = (await request.json()).get("code")
        cookie = self.auth.guesses.judge(
            request.remote,
            lambda: self.auth.redeem(code) if isinstance(code, str) else None,
            is_proxied=request[IS_PROXIED],
        )
        if cookie is None:
            raise HttpError(
                HTTPStatus.UNAUTHORIZED,
                "This link has been used or has expired. Run `gatehouse link` for a new one.",
            )
        return _with_cookie(request, cookie)

    async def _log_out(self, request: web.Request, _: Caller) -> web.StreamResponse:
        response = web.json_response({"status": "logged out"})
        response.del_cookie(cookie_name(request), path="/", httponly=True, samesite="Strict")
        self.auth.revoke(request.cookies.get(cookie_name(request), ""))
        return response

    async def _link(self, _request: web.Request, _: Caller) -> web.StreamResponse:
        if not self.url():
            raise Refused("Gatehouse is not listening on a port; start it with `gatehouse run` to use a browser.")
        # The fragment of a URL is never sent to a server, so it is in no log.
        return web.json_response({"url": f"{self.url()}/#code={self.auth.mint_code()}"})


def health_routes(health: Callable[[], Health]) -> list[Route]:
    async def readyz(_: web.Request, caller: Caller) -> web.StreamResponse:
        found = health()
        status = HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return web.json_response(_describe(found, for_owner=caller.is_owner), status=status)

    return [
        Route(method="GET", path="/healthz", access=Access.PUBLIC, handle=_healthz),
        Route(method="GET", path="/readyz", access=Access.PUBLIC, handle=readyz),
    ]


async def _healthz(_request: web.Request, _: Caller) -> web.StreamResponse:
    return web.json_response({"status": "alive"})


async def _whoami(_: web.Request, caller: Caller) -> web.StreamResponse:
    return web.json_response({"name": caller.name, "is_owner": caller.is_owner})


def _with_cookie(request: web.Request, cookie: str) -> web.StreamResponse:
    response = web.json_response({"status": "welcome"})
    response.set_cookie(
        cookie_name(request),
        cookie,
        max_age=COOKIE_LIFETIME,
        path="/",
        httponly=True,
        samesite="Strict",
        # Behind a proxy that speaks TLS, the browser shall keep the cookie to TLS.
        secure=request.headers.get("Origin", "").startswith("https:"),
    )
    return response


def _describe(health: Health, *, for_owner: bool) -> dict[str, object]:
    """Strangers see which channels are up; why one is not is for the owner."""
    if not for_owner:
        return {"status": health.state, "channels": {_label(channel): channel.state for channel in health.channels}}
    return {
        "status": health.state,
        "channels": {
            _label(channel): {"state": channel.state, "reason": channel.reason, "since": channel.since.isoformat()}
            for channel in health.channels
        },
        "troubles": list(health.troubles),
        "warnings": list(health.warnings),
    }


def _label(channel: ChannelHealth) -> str:
    return channel.name if channel.account == "default" else f"{channel.name}:{channel.account}"

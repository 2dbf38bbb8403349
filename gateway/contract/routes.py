"""What a channel serves on the gateway's own HTTP server, and to whom."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    # Only channels that live on HTTP pay for the import.
    from aiohttp import web

__all__ = [
    "Access",
    "Caller",
    "HasRoutes",
    "Route",
]


class Access(StrEnum):
    """Who may call a route."""

    PUBLIC = "public"
    """Anybody who can reach the port: liveness, the page without its data, the exchange of a code."""
    OWNER = "owner"
    """Who has the token, a browser's cookie made from it, or the control socket."""
    CONTROL = "control"
    """Who can open the control socket, and nobody over TCP."""
    CHANNEL = "channel"
    """Whom the channel itself knows by a header: a platform that calls us. `Route.knows` is asked before any of the
    body is read. Guesses are not counted, or a stranger could shut the platform out: the secret must be a long one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who is calling a route, as the server has found out by itself. Empty `name`: a stranger."""

    name: str = ""
    is_owner: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One HTTP route of a channel. Host, Origin, credential and size have been checked before `handle` runs.

    With `takes_file` the body is no JSON but a file, of which nothing has been read: `handle` reads it, and has to
    stop where it is too long.
    """

    method: str
    path: str
    access: Access
    handle: Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]
    knows: Callable[[Mapping[str, str]], bool] | None = None
    """For `Access.CHANNEL`: tells by the headers whether it is who it should be. Without it, nobody is."""
    takes_file: bool = False
    deadline: float | None = None
    """Seconds that `handle` may take, where the usual ones are too few."""


@runtime_checkable
class HasRoutes(Protocol):
    """Lives on the gateway's own HTTP server."""

    def routes(self) -> Sequence[Route]: ...

"""HTTP routes of a channel on the gateway's own server, and who may call them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    # Only channels that live on HTTP pay for the import.
    from aiohttp import web


class Access(StrEnum):
    """Who may call a route."""

    PUBLIC = "public"
    """Every caller who can reach the port: liveness, the page without its data, the exchange of a code."""
    OWNER = "owner"
    """Callers with the token, a cookie made from it, or the control socket."""
    CONTROL = "control"
    """Callers on the control socket, and none over TCP."""
    CHANNEL = "channel"
    """A platform that the channel recognises by a header. `Route.knows` is called before any of the body is read. Wrong
    guesses are not counted, or an attacker could lock the platform out. So the secret must be long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a route, as the server has identified it. An empty `name` means an unknown caller."""

    name: str = ""
    is_owner: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One HTTP route of a channel. Host, Origin, credential and size have been checked before `handle` runs.

    With `takes_file` the body is a file instead of JSON, and has not been read: `handle` reads it, and must stop if it
    is too long.
    """

    method: str
    path: str
    access: Access
    handle: Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]
    knows: Callable[[Mapping[str, str]], bool] | None = None
    """For `Access.CHANNEL`: checks the headers. Without it, every caller is refused."""
    takes_file: bool = False
    deadline: float | None = None
    """Seconds that `handle` may take, if it needs more than usual."""


@runtime_checkable
class HasRoutes(Protocol):
    """Has routes on the gateway's own HTTP server."""

    def routes(self) -> Sequence[Route]: ...

"""HTTP routes of a channel on the gateway's own server, and who may call them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    # Only channels that live on HTTP pay for the import.
    from aiohttp import web


class TokenScope(StrEnum):
    """What an API token allows."""

    READ = "read"
    """Read the sessions of the API."""
    PROMPT = "prompt"
    """Start sessions and send prompts to them. Without `read`, a token sees only the sessions that it has started."""
    MANAGE = "manage"
    """End, rename, archive, export and delete the sessions that the token sees, and answer their approvals."""
    ADMIN = "admin"
    """All of the above, also for the chats of people on every channel."""


class Access(StrEnum):
    """Who may call a route."""

    PUBLIC = "public"
    """Every caller who can reach the port: liveness, the page without its data, the exchange of a code."""
    OWNER = "owner"
    """Callers with the token, a cookie made from it, or the control socket."""
    CONTROL = "control"
    """Callers on the control socket, and none over TCP."""
    API = "api"
    """Callers with an API token that has `Route.scope`, and owners, who have every scope."""
    CHANNEL = "channel"
    """A platform that the channel recognises by a header. `Route.knows` is called before any of the body is read. Wrong
    guesses are not counted, or an attacker could lock the platform out. So the secret must be long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a route, as the server has identified it. An empty `name` means an unknown caller.

    `token` is the id of the API token that the caller has shown; empty for owners.
    """

    name: str = ""
    is_owner: bool = False
    token: str = ""
    scopes: frozenset[TokenScope] = frozenset()

    def may(self, scope: TokenScope) -> bool:
        """Return whether the caller has `scope`. Owners and `admin` have every scope."""
        return self.is_owner or scope in self.scopes or TokenScope.ADMIN in self.scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One HTTP route of a channel. Host, Origin, credential and size have been checked before `handle` runs.

    With `takes_file` the body is a file instead of JSON, and has not been read: `handle` reads it, and must stop if it
    is too long. With `takes_any_type` the body has been read, and may be anything: `handle` has to check it.
    """

    method: str
    path: str
    access: Access
    handle: Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]
    knows: Callable[[Mapping[str, str]], bool] | None = None
    """For `Access.CHANNEL`: checks the headers. Without it, every caller is refused."""
    scope: TokenScope | None = None
    """For `Access.API`: the scope that the token must have. None: any valid token will do."""
    takes_file: bool = False
    takes_any_type: bool = False
    is_stream: bool = False
    """The response goes on for as long as the client reads it, so `handle` has no deadline. It is cancelled when the
    client leaves, when the token of the client is revoked, and when the server closes."""
    takes_key: bool = False
    """A repeated request with the same header `Idempotency-Key` has no further effect."""
    drops_repeats: bool = False
    """A repeated request has no further effect, because the channel recognises what it has received before."""
    handle_elsewhere: Callable[[web.Request, Caller], Awaitable[web.StreamResponse]] | None = None
    """Takes the place of `handle` at a node of a cluster that does not own the conversation, if the owner cannot be
    reached at once."""
    deadline: float | None = None
    """Seconds that `handle` may take, if it needs more than usual."""


@runtime_checkable
class HasRoutes(Protocol):
    """Has routes on the gateway's own HTTP server."""

    def routes(self) -> Sequence[Route]: ...

"""Responses: the security headers of every response, errors as JSON with one message, and the server's limits."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Self

from aiohttp import web
from msgspec import Struct

from gateway.errors import Refused

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

NO_JSON = "The body must be a JSON object in UTF-8."
INTERNAL_ERROR = "Something went wrong. The gateway's log has the details."

ACCEPT_BATCH = 1
"""New connections that are accepted in one pass of the event loop. More would have to be closed unread at the limit."""

_MESSAGES = {
    HTTPStatus.NOT_FOUND: "There is nothing at this address.",
    HTTPStatus.METHOD_NOT_ALLOWED: "This address doesn't accept that method.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large.",
}


class HttpError(Exception):
    """Ends a request with `status` and a message for the caller."""

    def __init__(self, status: HTTPStatus, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": message}, status=status, headers=headers)


def response_for(error: Exception) -> web.Response | None:
    """Return the response to an error that is meant for the caller, and None for a bug."""
    match error:
        case HttpError():
            return error_response(error.status, str(error), error.headers)
        case Refused():
            return error_response(HTTPStatus.CONFLICT, str(error))
        case web.HTTPException():
            if error.status < HTTPStatus.BAD_REQUEST or error.content_type == "application/json":
                raise error  # A handler's redirect or JSON error. aiohttp sends it as it is.
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            return error_response(error.status, _MESSAGES.get(HTTPStatus(error.status), f"{error.reason}."), headers)
        case json.JSONDecodeError():
            # Bodies are checked before the handler runs, so this request had none.
            return error_response(HTTPStatus.BAD_REQUEST, NO_JSON)
        case _:
            return None


class HttpLimits(Struct, frozen=True, kw_only=True):
    """Durations in seconds, and numbers of connections. A connection is anonymous until it shows a credential."""

    header: float = 10.0
    """From connecting to the end of the first request's header."""
    body: float = 30.0
    handler: float = 30.0
    """For a handler to respond, except for the WebSockets of owners."""
    upload: float = 600.0
    """For a handler that takes a file from an owner."""
    anonymous: float = 75.0
    """From an anonymous request's complete header to the end of the connection, even if its client reads slowly."""
    keep_alive: float = 15.0
    linger: float = 2.0
    """For reading the rest of a refused request, so that the client sees the response."""
    closing: float = 2.0
    """For each step of closing the server."""
    max_anonymous: int = 64
    max_authenticated: int = 512
    """Connections that have shown a credential. At the limit, the one that has been idle for longest makes room."""
    max_idle: int = 64
    """Authenticated connections that wait for their next request."""
    max_control: int = 64
    """Connections through the control socket. They have their own limit, so that the operator can always connect."""

    @classmethod
    def within(cls, connections: int) -> Self:
        """Return limits that allow at most so many connections at once."""
        anonymous, share = max(2, connections // 3), max(2, connections // 8)
        return cls(
            max_anonymous=min(64, anonymous),
            max_idle=min(64, share),
            max_control=min(64, share),
            max_authenticated=min(512, max(4, connections - anonymous - share - ACCEPT_BATCH)),
        )

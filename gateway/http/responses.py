"""Responses: the security headers of every response, the formats of errors, and the server's limits."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Self

import msgspec
from aiohttp import web
from msgspec import Struct

from gateway.errors import HeldElsewhere, MustStop, Refused, RefusedForNow

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; worker-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

JSON = "application/json"
PROBLEM = "application/problem+json"
NO_JSON = "The body must be a JSON object in UTF-8."
INTERNAL_ERROR = "Something went wrong. The gateway's log has the details."
_STOPPED = "The gateway had to stop, and may have done this before. Look before you repeat it."

ACCEPT_BATCH = 1
"""New connections that are accepted in one pass of the event loop. More would have to be closed unread at the limit."""

_MESSAGES = {
    HTTPStatus.NOT_FOUND: "There is nothing at this address.",
    HTTPStatus.METHOD_NOT_ALLOWED: "This address doesn't accept that method.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large.",
}


_OPENAI_ERRORS: dict[int, tuple[str, str | None]] = {
    HTTPStatus.UNAUTHORIZED: ("invalid_request_error", "invalid_api_key"),
    HTTPStatus.FORBIDDEN: ("invalid_request_error", "insufficient_permissions"),
    HTTPStatus.TOO_MANY_REQUESTS: ("requests", "rate_limit_exceeded"),
}
"""The `type` and `code` of OpenAI's errors, by status."""


class HttpError(Exception):
    """Ends a request with `status` and a message for the caller.

    `extra` are more members of a problem document. In OpenAI's format, its `type`, `param` and `code` count.
    """

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})


def is_under(path: str, *roots: str) -> bool:
    """Return whether `path` is one of `roots` or below one."""
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def error_response(
    path: str,
    status: int,
    message: str,
    headers: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
) -> web.Response:
    """Return an error in the format that clients of `path` expect.

    That is a problem document of RFC 9457 for the API and for webhooks, and OpenAI's format under `/v1`.
    """
    more = extra or {}
    if is_under(path, "/api", "/hooks"):
        problem = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": message}
        body, content_type = msgspec.json.encode({**problem, **more}), PROBLEM
    elif is_under(path, "/v1"):
        usual = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        kind, code = _OPENAI_ERRORS.get(status, (usual, None))
        error = {"message": message, "type": more.get("type", kind), "param": more.get("param")}
        body, content_type = msgspec.json.encode({"error": error | {"code": more.get("code", code)}}), JSON
    else:
        return web.json_response({"error": message}, status=status, headers=headers)
    return web.Response(body=body, status=status, headers=headers, content_type=content_type)


def response_for(error: Exception, path: str) -> web.Response | None:
    """Return the response to an error that is meant for the caller of `path`, and None for a bug."""
    match error:
        case HttpError():
            return error_response(path, error.status, str(error), error.headers, error.extra)
        case MustStop():
            return error_response(path, HTTPStatus.BAD_GATEWAY, _STOPPED)
        case HeldElsewhere():
            return error_response(path, HTTPStatus.SERVICE_UNAVAILABLE, str(error), {"Retry-After": "1"})
        case RefusedForNow():
            return error_response(path, HTTPStatus.SERVICE_UNAVAILABLE, str(error), {"Retry-After": "5"})
        case Refused():
            return error_response(path, HTTPStatus.CONFLICT, str(error))
        case web.HTTPException():
            if error.status < HTTPStatus.BAD_REQUEST or error.content_type in {JSON, PROBLEM}:
                raise error  # A handler's redirect or JSON error. aiohttp sends it as it is.
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            message = _MESSAGES.get(HTTPStatus(error.status), f"{error.reason}.")
            return error_response(path, error.status, message, headers)
        case json.JSONDecodeError():
            # Bodies are checked before the handler runs, so this request had none.
            return error_response(path, HTTPStatus.BAD_REQUEST, NO_JSON)
        case _:
            return None


class HttpLimits(Struct, frozen=True, kw_only=True):
    """Durations in seconds, and numbers of connections. A connection is anonymous until it shows a credential."""

    header: float = 10.0
    """From connecting to the end of the first request's header."""
    body: float = 30.0
    handler: float = 30.0
    """For a handler to respond, except for streams and the WebSockets of owners."""
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
    max_authenticated: int = 4096
    """Connections that have shown a credential. At the limit, the one that has been idle for longest makes room. API
    tokens get seven eighths of them, so that no program can keep the owner out."""
    max_idle: int = 64
    """Authenticated connections that wait for their next request."""
    max_control: int = 64
    """Connections through the control socket. They have their own limit, so that the operator can always connect."""

    @classmethod
    def within(cls, connections: int) -> Self:
        """Return limits that allow at most so many connections at once."""
        anonymous, share = min(64, max(2, connections // 3)), min(64, max(2, connections // 8))
        return cls(
            max_anonymous=anonymous,
            max_idle=share,
            max_control=share,
            max_authenticated=min(4096, max(4, connections - anonymous - share - ACCEPT_BATCH)),
        )

"""What every answer has in common: the security headers, and errors as one JSON sentence."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web

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

NO_JSON = "The body has to be a JSON object in UTF-8."
OUR_FAULT = "Something went wrong here; the log says what."

_SENTENCES = {
    HTTPStatus.NOT_FOUND: "There is nothing here.",
    HTTPStatus.METHOD_NOT_ALLOWED: "This address does not take that method.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large.",
}


class HttpError(Exception):
    """A request is answered with `status` and this sentence, and its handler does not run."""

    def __init__(self, status: HTTPStatus, sentence: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = dict(headers or {})


def error_response(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": sentence}, status=status, headers=headers)


def explain(error: Exception) -> web.Response | None:
    """Return the answer to a failure that a caller should hear of, and None for a bug."""
    match error:
        case HttpError():
            return error_response(error.status, str(error), error.headers)
        case Refused():
            return error_response(HTTPStatus.CONFLICT, str(error))
        case web.HTTPException():
            return _from_aiohttp(error)
        case json.JSONDecodeError():
            # Bodies have been checked, so this is a handler that wanted one where there was none.
            return error_response(HTTPStatus.BAD_REQUEST, NO_JSON)
        case _:
            return None


def _from_aiohttp(error: web.HTTPException) -> web.Response:
    """Give aiohttp's own errors our form; a redirect or a JSON error of a handler is raised again, as it is."""
    if error.status < HTTPStatus.BAD_REQUEST or error.content_type == "application/json":
        raise error
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
    return error_response(error.status, _SENTENCES.get(HTTPStatus(error.status), f"{error.reason}."), headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Durations in seconds. A stranger is a connection that has not shown a credential yet."""

    header: float = 10.0
    """From connecting to the end of the first request's header."""
    body: float = 30.0
    handler: float = 30.0
    """For a handler to answer, unless it is an owner's WebSocket."""
    upload: float = 600.0
    """For a handler that takes a file from an owner."""
    visit: float = 75.0
    """From a stranger's complete header to the end of the connection, however slowly the answer is read."""
    keep_alive: float = 15.0
    lingering: float = 2.0
    """For reading what a refused client goes on sending, so that it sees the answer."""
    closing: float = 2.0
    """For each step of closing the server."""
    strangers: int = 64
    known: int = 512
    """Connections that have shown a credential, or came through the control socket."""

"""The responses to calls: what became of a delivery, and problem documents (RFC 9457)."""

from http import HTTPStatus
from math import ceil

import msgspec
from aiohttp import web

UNAUTHORIZED = "Only the platform that this webhook belongs to may call it."
"""The same words as for a call without any signature, which the gateway refuses before it reads the body."""

SAME_BODY = "A delivery with this body came before under another id. The id is not signed, so this could be a replay."


def accepted() -> web.Response:
    """Say that the delivery is safe. Its answer does not come with this response."""
    return web.json_response({"status": "accepted"}, status=HTTPStatus.ACCEPTED)


def answered(text: str, *, is_failure: bool = False) -> web.Response:
    return web.json_response({"status": "failed" if is_failure else "answered", "text": text})


def ignored() -> web.Response:
    """Say that the delivery is not one that the hook answers."""
    return web.json_response({"status": "ignored"})


def duplicate(text: str | None = None) -> web.Response:
    """Say that the delivery came before. After any status but 2xx, its sender would repeat it again."""
    return web.json_response({"status": "duplicate"} if text is None else {"status": "duplicate", "text": text})


def problem(status: HTTPStatus, detail: str, *, retry_after: float | None = None) -> web.Response:
    headers = {} if retry_after is None else {"Retry-After": str(max(1, ceil(retry_after)))}
    document = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail}
    return web.Response(
        body=msgspec.json.encode(document), status=status, headers=headers, content_type="application/problem+json"
    )

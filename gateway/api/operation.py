"""An operation of the API: its route, its types, and everything that the OpenAPI document says about it.

A handler gets a request that is valid by its types, and returns a value of its response type. So the document and the
behaviour cannot differ.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from gateway.contract import Access, Caller, Route, TokenScope
from gateway.errors import NotAccepted
from gateway.http.forwarding import IDEMPOTENCY_KEY
from gateway.http.responses import HttpError
from gateway.spool import SpoolUnavailable

RETRY_AFTER = 5
"""Seconds after which a program may repeat a request that the gateway cannot take now."""

HEADER_PATTERN = "^[!-~]{1,255}$"
"""The values of a header that an operation documents: visible ASCII characters."""

_T = TypeVar("_T")
_encode = msgspec.json.Encoder().encode


class ApiCall(Struct, frozen=True, kw_only=True):
    """One request, as its handler sees it."""

    request: web.Request
    caller: Caller
    query: object = None
    body: object = None

    def path(self, name: str) -> str:
        return self.request.match_info[name]

    def query_as(self, kind: type[_T]) -> _T:
        assert isinstance(self.query, kind)  # noqa: S101 - the operation has decoded it with this type.
        return self.query

    def body_as(self, kind: type[_T]) -> _T:
        assert isinstance(self.body, kind)  # noqa: S101 - the operation has decoded it with this type.
        return self.body


ApiHandler = Callable[[ApiCall], Awaitable[Struct | web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Says which other operation can be called with the id in the response. OpenAPI calls this a link."""

    operation: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOperation:
    """`name` is its `operationId`. `errors` are the statuses besides those that every operation can have."""

    name: str
    method: str
    path: str
    summary: str
    tag: str
    handle: ApiHandler
    description: str = ""
    scope: TokenScope | None = None
    query: type[Struct] | None = None
    body: type[Struct] | None = None
    response: type[Struct] | None = None
    """None if the handler makes the response itself, of one of `media_types`."""
    media_types: tuple[str, ...] = ("application/json",)
    status: HTTPStatus = HTTPStatus.OK
    errors: tuple[HTTPStatus, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the request, with their descriptions."""
    links: tuple[Link, ...] = ()
    access: Access = Access.API
    takes_file: bool = False
    deadline: float | None = None
    """Seconds that the response may take, if the usual ones are too few for a long session."""
    is_stream: bool = False

    def route(self) -> Route:
        return Route(
            method=self.method,
            path=self.path,
            access=self.access,
            handle=self._respond,
            scope=self.scope,
            takes_file=self.takes_file,
            deadline=self.deadline,
            is_stream=self.is_stream,
            takes_key=IDEMPOTENCY_KEY in self.headers,
        )

    async def _respond(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        for name in self.headers:
            _check_header(request, name)
        query = None if self.query is None else _decode_query(request, self.query)
        body = None if self.body is None else await _decode_body(request, self.body)
        try:
            result = await self.handle(ApiCall(request=request, caller=caller, query=query, body=body))
        except (NotAccepted, SpoolUnavailable) as refusal:  # Nothing can be stored, or the gateway is shutting down.
            headers = {"Retry-After": str(RETRY_AFTER)}
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, str(refusal), headers=headers) from refusal
        if isinstance(result, web.StreamResponse):
            return result
        return json_response(result, self.status)


def json_response(value: Struct, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(body=_encode(value), status=status, content_type="application/json")


def invalid(detail: str) -> HttpError:
    """Return the error for a request that is well-formed and cannot be carried out as it is."""
    return HttpError(HTTPStatus.UNPROCESSABLE_ENTITY, detail)


def _check_header(request: web.Request, name: str) -> None:
    given = request.headers.getall(name, [])
    if len(given) > 1 or not all(re.search(HEADER_PATTERN, value) for value in given):
        raise invalid(f"The header {name} may appear once, with 1 to 255 visible ASCII characters.")


def _decode_query(request: web.Request, kind: type[_T]) -> _T:
    if len(request.query) != len(set(request.query)):
        raise invalid("A parameter of the query appears twice. Give each one once.")
    try:
        return msgspec.convert(dict(request.query), kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(f"The query is not valid: {error}.") from error


async def _decode_body(request: web.Request, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise invalid(f"The body is not valid: {error}.") from error

"""The routes that describe the API: the OpenAPI document and its page. Both are made when they are first asked for."""

from collections.abc import Sequence
from functools import cache

import msgspec
from aiohttp import web

from gateway.api.operation import ApiOperation
from gateway.contract import Access, Caller, Route


def description_routes(operations: Sequence[ApiOperation]) -> list[Route]:
    @cache
    def contents() -> dict[str, tuple[bytes, str]]:
        # An idle gateway does not need the generators.
        from gateway.api.docs_page import DOCS_CSS, docs_page  # noqa: PLC0415
        from gateway.api.openapi import openapi_document  # noqa: PLC0415

        document = openapi_document(operations)
        return {
            "/api/openapi.json": (msgspec.json.encode(document), "application/json"),
            "/api/docs": (docs_page(document).encode(), "text/html"),
            "/api/docs.css": (DOCS_CSS.encode(), "text/css"),
        }

    async def serve(request: web.Request, _: Caller) -> web.StreamResponse:
        body, media_type = contents()[request.path]
        charset = None if media_type == "application/json" else "utf-8"
        return web.Response(body=body, content_type=media_type, charset=charset)

    # They contain nothing about this gateway, and a program reads them before it has a token.
    paths = ("/api/openapi.json", "/api/docs", "/api/docs.css")
    return [Route(method="GET", path=path, access=Access.PUBLIC, handle=serve) for path in paths]

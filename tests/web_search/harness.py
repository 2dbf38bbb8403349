"""A local server that speaks the formats of the search engines."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from config import SearchSettings

KEY = "canary-key-0123456789"
HIT = {"title": "The <strong>Rose</strong> &amp; the bee", "url": "https://example.org/rose"}
RESULTS = {
    "searxng": {"query": "rose", "results": [{**HIT, "content": "A flower\n2. Forged"}], "unresponsive_engines": []},
    "brave": {"query": {"original": "rose"}, "web": {"results": [{**HIT, "description": "A flower\n2. Forged"}]}},
    "tavily": {"query": "rose", "results": [{**HIT, "content": "A flower\n2. Forged", "score": 0.9}]},
    "template": {"hits": {"list": [{"a": {"name": HIT["title"]}, "link": HIT["url"], "text": "A flower\n2. Forged"}]}},
}
POINTERS = {"results_at": "/hits/list", "title_at": "/a/name", "link_at": "/link", "snippet_at": "/text"}


@dataclass
class Engine:
    """A search engine. It sends its `answer`: a status with a body and headers, or JSON with status 200."""

    kind: str
    answer: Any
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.asked.append({"path": request.path, "query": dict(request.query), "body": body, **self._key(request)})
        if callable(self.answer):
            await self.answer()
        if isinstance(self.answer, tuple):
            status, text, headers = self.answer
            return web.Response(status=status, text=text, headers=headers)
        return web.json_response(self.answer)

    def _key(self, request: web.Request) -> dict[str, str | None]:
        names = {"brave": "X-Subscription-Token", "tavily": "Authorization", "template": "X-Key"}
        return {"key": request.headers.get(names.get(self.kind, "Authorization"))}

    def settings(self, **more: object) -> SearchSettings:
        table: dict[str, object] = {"engine": self.kind, "url": self.url}
        if self.kind in {"brave", "tavily"}:
            table["api_key"] = KEY
        if self.kind == "template":
            table |= {"url": f"{self.url}find/{{query}}?n=5", "headers": {"X-Key": KEY}, **POINTERS}
        return SearchSettings.model_validate({**table, **more})


@asynccontextmanager
async def serving_search(kind: str, answer: object = None) -> AsyncIterator[Engine]:
    engine = Engine(kind, RESULTS[kind] if answer is None else answer)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.handle)
    server = TestServer(app)
    async with server:
        engine.url = str(server.make_url("/"))
        yield engine

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from channels.web.assets import asset_routes
from tests.channels.websocket.harness import serving


@pytest.fixture
async def client() -> AsyncIterator[TestClient[Any, Any]]:
    async with serving(asset_routes()) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/app.js", "text/javascript; charset=utf-8"),
        ("/app.css", "text/css; charset=utf-8"),
        ("/favicon.svg", "image/svg+xml; charset=utf-8"),
    ],
)
async def test_serves_the_page(client: TestClient[Any, Any], path: str, media_type: str) -> None:
    for _ in range(2):
        answer = await client.get(path)
        assert (answer.status, answer.headers["Content-Type"]) == (200, media_type)
        assert await answer.text()


@pytest.mark.parametrize(
    "path",
    [
        "/index.html",
        "/../channel.py",
        "/%2e%2e/channel.py",
        "/..%2fchannel.py",
        "/app.js%00",
        "/.git/config",
        "/page/app.js",
        "//etc/passwd",
        "/sessions/transcripts/main.jsonl",
    ],
)
async def test_serves_nothing_else(client: TestClient[Any, Any], path: str) -> None:
    """Asked by hand, since a client library would tidy the path up first."""
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert (await reader.readline()).split()[1] in {b"404", b"400"}
    writer.close()
    await writer.wait_closed()


async def test_the_page_brings_no_inline_code_and_asks_nobody_else(client: TestClient[Any, Any]) -> None:
    """The content security policy would block both; a reader should not have to find out from the console."""
    page = await (await client.get("/")).text()
    code = await (await client.get("/app.js")).text()
    style = await (await client.get("/app.css")).text()
    assert not re.search(r"<script(?! src=)|<style|\son\w+=|\sstyle=", page)
    assert not re.search(r"https?://|//[a-z]+\.", page + style)
    assert not re.search(r"\.style\b|eval\(|https?://", code)

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

import channels.web
from channels.web import open_channel
from channels.web.channel import WebChannel
from gateway.contract import Access, Drafts, HasRoutes, OffersButtons
from gateway.testing import Core, StubBrowser, StubPulse
from tests.channels.websocket.harness import context, frame, outbound, running, say, serving

PAGE = Path(channels.web.__file__).parent / "page"
FILES = sorted(path.relative_to(PAGE).as_posix() for path in PAGE.rglob("*.*"))


@pytest.fixture
def pulse() -> StubPulse:
    return StubPulse()


@pytest.fixture
def channel(pulse: StubPulse) -> WebChannel:
    opened = open_channel(context(StubBrowser(), pulse))
    assert isinstance(opened, WebChannel)
    return opened


@pytest.fixture
async def client(channel: WebChannel) -> AsyncIterator[TestClient[Any, Any]]:
    async with serving(channel.routes()) as client:
        yield client


def test_has_drafts_routes_and_buttons(channel: WebChannel) -> None:
    assert isinstance(channel, Drafts)
    assert isinstance(channel, HasRoutes)
    assert isinstance(channel, OffersButtons)


def test_only_the_files_of_the_page_are_public(channel: WebChannel) -> None:
    access = {route.path: route.access for route in channel.routes()}
    public = {path for path, who in access.items() if who is Access.PUBLIC}
    pages = {"/", "/console"}
    assert public == pages | {f"/{path}" for path in FILES if not path.endswith("index.html")}
    assert access["/web/ws"] is Access.OWNER


async def test_delivers_messages_and_sends_rendered_answers(
    channel: WebChannel, client: TestClient[Any, Any], pulse: StubPulse
) -> None:
    core = Core()
    async with running(channel, core, pulse), client.ws_connect("/web/ws") as socket:
        await say(socket, "hello")
        await frame(socket, "ack")
        await channel.draft(outbound("**wo"), key="k")
        await channel.send(outbound("**world**"), key="k")
        assert (await frame(socket, "message"))["html"] == "<p><strong>world</strong></p>\n"
    assert core.taken[0].address.channel == channel.name


async def test_html_in_an_answer_is_escaped(channel: WebChannel, client: TestClient[Any, Any]) -> None:
    async with client.ws_connect("/web/ws") as socket:
        await channel.send(outbound("<script>alert(1)</script>"), key="k")
        assert "<script" not in (await frame(socket, "message"))["html"]


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/chat/app.js", "text/javascript; charset=utf-8"),
        ("/shared/dom.js", "text/javascript; charset=utf-8"),
        ("/shared/theme.css", "text/css; charset=utf-8"),
        ("/favicon.svg", "image/svg+xml; charset=utf-8"),
    ],
)
async def test_serves_the_files_of_the_page(client: TestClient[Any, Any], path: str, media_type: str) -> None:
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
        "/chat/app.js%00",
        "/.git/config",
        "/page/chat/app.js",
        "//etc/passwd",
        "/sessions/transcripts/main.jsonl",
    ],
)
async def test_serves_no_other_file(client: TestClient[Any, Any], path: str) -> None:
    """Over a plain socket, because a client library would normalise the path first."""
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert (await reader.readline()).split()[1] in {b"404", b"400"}
    writer.close()
    await writer.wait_closed()


async def test_the_page_has_no_inline_code_and_no_foreign_addresses(client: TestClient[Any, Any]) -> None:
    """The content security policy would block both."""
    page = "".join([await (await client.get(path)).text() for path in ("/", "/console")])
    modules = {path: await (await client.get(f"/{path}")).text() for path in FILES if path.endswith(".js")}
    style = "".join([await (await client.get(f"/{path}")).text() for path in FILES if path.endswith(".css")])
    assert not re.search(r"<script(?! src=)|<style|\son\w+=|\sstyle=", page)
    assert not re.search(r"https?://|//[a-z]+\.", page + style)
    # The namespace of SVG is a name, and no address.
    code = {path: text.replace("http://www.w3.org/2000/svg", "") for path, text in modules.items()}
    assert not [path for path, text in code.items() if re.search(r"eval\(|https?://", text)]
    # The list of sessions places its rows by script, which the policy allows. All else is up to style sheets.
    assert [path for path, text in code.items() if re.search(r"\.style\b", text)] == ["console/window.js"]


@pytest.mark.parametrize(("page", "start"), [("index.html", "chat/app.js"), ("console/index.html", "console/app.js")])
def test_the_page_names_all_of_its_modules_so_that_they_load_in_parallel(page: str, start: str) -> None:
    """Otherwise a module would be requested only after the one that imports it."""

    def imported(path: str) -> set[str]:
        names = re.findall(
            r"^(?:import|\} from|export) .*?\"(\.\.?/[^\"]+)\";$", (PAGE / path).read_text(), re.MULTILINE
        )
        return {(PAGE / path).parent.joinpath(name).resolve().relative_to(PAGE).as_posix() for name in names}

    found: set[str] = set()
    missing = {start}
    while missing:
        found |= missing
        missing = set().union(*map(imported, missing)) - found
    html = (PAGE / page).read_text()
    preloaded = re.findall(r"<link rel=\"modulepreload\" href=\"/([^\"]+)\">", html)
    assert set(preloaded) - {start} == found - {start}
    assert len(preloaded) == len(set(preloaded))


def test_the_page_is_small() -> None:
    """With every language, although a browser loads one or two."""
    parts = [PAGE / path for path in FILES if path.startswith(("index.html", "chat/", "shared/", "texts/"))]
    assert sum(path.stat().st_size for path in parts) < 300_000

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from channels.web import open_channel
from channels.web.channel import WebChannel
from gateway.contract import Access, Drafts, HasRoutes, OffersButtons
from tests.channels.websocket.harness import (
    Core,
    StubBrowser,
    StubPulse,
    context,
    frame,
    outbound,
    running,
    say,
    serving,
)


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


def test_has_the_abilities_that_the_page_shows(channel: WebChannel) -> None:
    assert isinstance(channel, Drafts)
    assert isinstance(channel, HasRoutes)
    assert isinstance(channel, OffersButtons)


def test_only_the_empty_page_is_public(channel: WebChannel) -> None:
    access = {route.path: route.access for route in channel.routes()}
    assert {path for path, who in access.items() if who is Access.PUBLIC} == {
        "/",
        "/app.js",
        "/app.css",
        "/favicon.svg",
    }
    assert access["/web/ws"] is Access.OWNER


async def test_talks_both_ways(channel: WebChannel, client: TestClient[Any, Any], pulse: StubPulse) -> None:
    core = Core()
    async with running(channel, core, pulse), client.ws_connect("/web/ws") as socket:
        await say(socket, "hello")
        await frame(socket, "ack")
        await channel.draft(outbound("**wo"), key="k")
        await channel.send(outbound("**world**"), key="k")
        assert (await frame(socket, "message"))["html"] == "<p><strong>world</strong></p>\n"
    assert core.taken[0].address.channel == channel.name


async def test_html_in_an_answer_is_shown_and_not_run(channel: WebChannel, client: TestClient[Any, Any]) -> None:
    async with client.ws_connect("/web/ws") as socket:
        await channel.send(outbound("<script>alert(1)</script>"), key="k")
        assert "<script" not in (await frame(socket, "message"))["html"]

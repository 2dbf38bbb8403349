import asyncio
import os
from typing import Any

import pytest
from aiohttp import web
from msgspec import structs

from config import Settings
from gateway.agent.toolbox import built_in
from gateway.agent.tools import Tool, Toolbox, ToolContext, ToolFailed
from gateway.conversation import ToolCall
from gateway.errors import Refused
from tests.agent.media.harness import OPUS, MediaServer, as_base64, drawing, refused, serving_media

PRICES = {"images": {"price": 0.04}, "speech": {"price": 15.0}}


class Purse:
    """A budget that has a limit."""

    def __init__(self, limit: float = 100.0) -> None:
        self.limit = limit
        self.charged: list[tuple[str, float]] = []

    async def check_limits(self) -> None:
        if sum(cost for _, cost in self.charged) >= self.limit:
            raise Refused("You've reached today's limit.")

    def charge_call(self, model: str, cost: float) -> None:
        self.charged.append((model, cost))


def tools(server: MediaServer, **tables: dict[str, Any]) -> dict[str, Tool]:
    given = {name: {"provider": "art", **tables.get(name, {})} for name in ("images", "speech")}
    settings = Settings.model_validate({"providers": {"art": server.table()}, "tools": given})
    return {tool.spec.name: tool for tool in built_in(settings)}


def sending(context: ToolContext, sent: list[tuple[str, bytes]], purse: Purse | None = None) -> ToolContext:
    async def send(descriptor: int, name: str) -> str:
        sent.append((name, os.pread(descriptor, 1_000_000, 0)))
        return name

    return structs.replace(context, send_file=send, check_sending=lambda: None, budget=purse)


async def test_a_picture_is_made_sent_and_charged(context: ToolContext) -> None:
    sent: list[tuple[str, bytes]] = []
    purse = Purse()
    async with serving_media(as_base64(drawing())) as server:
        tool = tools(server, **PRICES)["generate_image"]
        told = await tool.run(sending(context, sent, purse), {"prompt": "A red fox in the snow, at night, in oil"})
    assert sent == [("A red fox in the snow.png", drawing())]
    assert "(320 by 200 pixels) goes to the person with your answer." in told
    assert server.bodies == [
        {"model": "gpt-image-1", "prompt": "A red fox in the snow, at night, in oil", "n": 1},
    ]
    assert purse.charged == [("art/gpt-image-1", 0.04)]


async def test_a_text_is_spoken_sent_and_charged_by_the_character(context: ToolContext) -> None:
    sent: list[tuple[str, bytes]] = []
    purse = Purse()
    async with serving_media(web.Response(body=OPUS)) as server:
        tool = tools(server, **PRICES)["speak"]
        told = await tool.run(sending(context, sent, purse), {"text": "Good morning"})
    assert (sent, told) == ([("speech.ogg", OPUS)], "The recording speech.ogg goes to the person with your answer.")
    assert server.bodies[0]["input"] == "Good morning"
    assert purse.charged == [("art/gpt-4o-mini-tts", 15.0 * 12 / 1_000_000)]


async def test_what_cannot_be_sent_or_paid_is_not_made(context: ToolContext) -> None:
    async with serving_media(as_base64(drawing())) as server:
        made = tools(server, **PRICES)
        calls = (made["generate_image"], {"prompt": "A fox"}), (made["speak"], {"text": "Hello"})
        for tool, arguments in calls:
            with pytest.raises(ToolFailed, match="Nothing was made: files cannot be sent here"):
                await tool.run(context, dict(arguments))
            with pytest.raises(ToolFailed, match="You've reached today's limit"):
                await tool.run(sending(context, [], Purse(limit=0.0)), dict(arguments))
    assert server.asked == []


@pytest.mark.parametrize(("name", "argument", "most"), [("generate_image", "prompt", 32_000), ("speak", "text", 4096)])
async def test_a_text_that_is_empty_or_too_long_is_not_sent(
    context: ToolContext, name: str, argument: str, most: int
) -> None:
    async with serving_media(as_base64(drawing())) as server:
        tool = tools(server)[name]
        for text in (" \n", "x" * (most + 1)):
            with pytest.raises(ToolFailed, match="The text"):
                await tool.run(sending(context, []), {argument: text})
    assert server.asked == []


async def test_a_failure_is_a_sentence_for_the_model_and_costs_nothing(context: ToolContext) -> None:
    purse, sent = Purse(), list[tuple[str, bytes]]()
    async with serving_media(refused(400, "safety system", "content_policy_violation")) as server:
        with pytest.raises(ToolFailed, match="declined to answer"):
            await tools(server, **PRICES)["generate_image"].run(sending(context, sent, purse), {"prompt": "A fox"})
    assert (purse.charged, sent) == ([], [])


async def test_a_picture_that_is_stopped_is_charged(context: ToolContext) -> None:
    purse = Purse()
    async with serving_media(asyncio.Event()) as server:
        tool = tools(server, **PRICES)["generate_image"]
        running = asyncio.create_task(tool.run(sending(context, [], purse), {"prompt": "A fox"}), name="call")
        await server.called()
        running.cancel("stopped")
        with pytest.raises(asyncio.CancelledError):
            await running
    assert purse.charged == [("art/gpt-image-1", 0.04)]


async def test_a_call_may_take_longer_than_other_tools(context: ToolContext) -> None:
    """The toolbox ends the calls of most tools after a minute."""
    async with serving_media(as_base64(drawing())) as server:
        made = tools(server, images={"timeout": 900.0})
        outcome = await Toolbox(made.values(), deadline=0.0).run(
            ToolCall(id="c", name="generate_image", input={"prompt": "A fox"}), sending(context, [])
        )
    assert not outcome.is_error, outcome.output
    assert (made["generate_image"].deadline or 0) > 900.0


def test_the_tools_exist_only_with_a_provider() -> None:
    def names(**tables: object) -> set[str]:
        provider = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}
        return {
            tool.spec.name
            for tool in built_in(Settings.model_validate({"providers": {"art": provider}, "tools": tables}))
        }

    assert names(images={"provider": "art"}) - names() == {"generate_image"}
    assert names(speech={"provider": "art"}) - names() == {"speak"}

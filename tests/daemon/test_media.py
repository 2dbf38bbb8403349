"""Pictures and recordings that agents make, through the whole gateway."""

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from channels.loopback import LoopbackChannel
from config import Settings
from gateway.contract import Enclosure, Sender
from gateway.sessions.entries import SentFile, ToolResult
from tests.agent.media.harness import KEY, OPUS, MediaServer, as_base64, drawing, serving_media
from tests.agent.wire import OPENAI, Call, WireServer, serving
from tests.daemon.harness import OWNER, ask, gateway, say_and_hear, settings, transcript_entries

DRAW = Call("generate_image", [json.dumps({"prompt": "A fox in the snow"})])
SPEAK = Call("speak", [json.dumps({"text": "Good morning"})])
ANN = Sender(id="ann", name="Ann")


def drawing_agent(folder: Path, server: WireServer, media: MediaServer, **tables: Any) -> Settings:  # noqa: ANN401 - tables of any shape.
    return settings(
        folder,
        **{
            "providers": {"fake": server.table(), "art": media.table()},
            "agents": {"main": {"provider": "fake", "model": "m"}},
            "channels": {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {"dm_policy": "open"}},
            "tools": {"images": {"provider": "art", "price": 0.04}, "speech": {"provider": "art", "price": 15.0}},
            **tables,
        },
    )


async def hear_file(chat: LoopbackChannel) -> tuple[Enclosure, bytes]:
    while (heard := await chat.hear()).how != "file":
        pass
    assert heard.message is not None
    assert heard.message.file is not None
    assert heard.content is not None
    return heard.message.file, heard.content


async def test_a_picture_goes_with_the_answer_and_its_cost_is_counted(tmp_path: Path) -> None:
    script = [OPENAI.answer(calls=[DRAW]), OPENAI.answer("Here is your fox.")]
    async with (
        serving(OPENAI, *script) as server,
        serving_media(as_base64(drawing())) as media,
        gateway(drawing_agent(tmp_path, server, media)) as (_, chat),
    ):
        assert (await say_and_hear(chat, "draw a fox", sender=OWNER)).text == "Here is your fox."
        file, content = await hear_file(chat)
        usage = await ask(chat, "/usage", sender=OWNER)
    assert (file.name, file.media_type, content) == ("A_fox_in_the_snow.png", "image/png", drawing())
    today, session, *_ = usage.splitlines()
    assert "cost 0.04" in today
    assert "cost 0.04" in session
    entries = transcript_entries(tmp_path)
    (result,) = [entry for entry in entries if isinstance(entry, ToolResult)]
    assert result.usage is not None
    assert (result.usage.cost_micros, result.is_error) == (40_000, False)
    assert len([entry for entry in entries if isinstance(entry, SentFile)]) == 1
    assert media.asked[0]["headers"]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in str([request.body for request in server.requests])


async def test_a_recording_goes_with_the_answer(tmp_path: Path) -> None:
    script = [OPENAI.answer(calls=[SPEAK]), OPENAI.answer("Listen.")]
    async with (
        serving(OPENAI, *script) as server,
        serving_media(web.Response(body=OPUS)) as media,
        gateway(drawing_agent(tmp_path, server, media)) as (_, chat),
    ):
        assert (await say_and_hear(chat, "say it")).text == "Listen."
        file, content = await hear_file(chat)
    assert (file.name, file.media_type, content) == ("speech.ogg", "audio/ogg", OPUS)


async def test_a_role_without_money_gets_no_second_picture(tmp_path: Path) -> None:
    script = [OPENAI.answer(calls=[DRAW, DRAW]), OPENAI.answer("Done.")]
    roles = {"guest": {"cost_per_day": 0.03, "people": ["loopback:ann"]}}
    async with (
        serving(OPENAI, *script) as server,
        serving_media(as_base64(drawing())) as media,
        gateway(drawing_agent(tmp_path, server, media, roles=roles)) as (_, chat),
    ):
        answer = (await say_and_hear(chat, "draw two", sender=ANN)).text
    assert "You've reached today's limit (a cost of 0.04 of 0.03)" in answer
    assert len(media.asked) == 1
    outputs = [entry.output for entry in transcript_entries(tmp_path) if isinstance(entry, ToolResult)]
    assert "goes to the person" in outputs[0]
    assert "today's limit" in outputs[1]


async def test_a_role_without_the_tool_is_not_offered_it(tmp_path: Path) -> None:
    roles = {"guest": {"tools": ["current_time"], "people": ["loopback:ann"]}}
    async with (
        serving(OPENAI, OPENAI.answer("No.")) as server,
        serving_media(as_base64(drawing())) as media,
        gateway(drawing_agent(tmp_path, server, media, roles=roles)) as (_, chat),
    ):
        await say_and_hear(chat, "draw", sender=ANN)
        await say_and_hear(chat, "draw", sender=OWNER)
    assert [each["function"]["name"] for each in server.requests[0].body["tools"]] == ["current_time"]
    offered = [each["function"]["name"] for each in server.requests[1].body["tools"]]
    assert {"generate_image", "speak"} <= set(offered)


async def test_a_person_is_asked_before_a_picture_is_made(tmp_path: Path) -> None:
    agents = {"main": {"provider": "fake", "model": "m", "ask": ["generate_image"]}}
    script = [OPENAI.answer(calls=[DRAW]), OPENAI.answer("As you wish.")]
    async with (
        serving(OPENAI, *script) as server,
        serving_media(as_base64(drawing())) as media,
        gateway(drawing_agent(tmp_path, server, media, agents=agents)) as (_, chat),
    ):
        question = await say_and_hear(chat, "draw a fox", sender=OWNER)
        assert "A fox in the snow" in question.text
        assert media.asked == []
        await chat.say("no", peer=OWNER.id, sender=OWNER)
        while (await chat.hear_message()).text != "As you wish.":
            pass
    assert media.asked == []


async def test_a_call_that_a_restart_interrupts_is_not_made_again(tmp_path: Path) -> None:
    script = [OPENAI.answer(calls=[DRAW]), OPENAI.answer("It was interrupted.")]
    async with serving(OPENAI, *script) as server, serving_media(asyncio.Event()) as media:
        hasty = drawing_agent(tmp_path, server, media, gateway={"data_dir": tmp_path / "data", "shutdown_timeout": 0})
        async with gateway(hasty) as (_, chat):
            await chat.say("draw a fox", peer=OWNER.id, sender=OWNER)
            await media.called()
        async with gateway(hasty) as (_, chat):
            assert (await chat.hear_message()).text == "It was interrupted."
    assert len(media.asked) == 1
    (result,) = [entry for entry in transcript_entries(tmp_path) if isinstance(entry, ToolResult)]
    assert result.is_error

"""A real `gatehouse run` that is killed between the 202 and the answer, with a model that speaks OpenAI's format."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.agent.wire import OPENAI, Chunk, WireServer, serving
from tests.api.harness import Json
from tests.daemon_process import DEFAULTS, DaemonProcess, write_config
from tests.polling import until


def config(model: WireServer) -> str:
    table = model.table()
    return f"""{DEFAULTS}
[providers.fake]
kind = "openai"
base_url = "{table["base_url"]}"
api_key = "{table["api_key"]}"
[agents.main]
provider = "fake"
model = "m"
tools = []
"""


async def call(http: ClientSession, daemon: DaemonProcess, method: str, path: str, **more: object) -> Json:
    headers = {"Authorization": f"Bearer {daemon.token}", **({"Idempotency-Key": "k"} if "prompt" in path else {})}
    async with http.request(method, f"{daemon.url}{path}", headers=headers, json=more) as response:
        found: Json = await response.json(content_type=None)
        assert response.status < 300, found
        return found


@pytest.mark.parametrize("moment", ["before the answer", "in mid-answer"])
async def test_a_prompt_is_answered_once_although_the_gateway_was_killed(tmp_path: Path, moment: str) -> None:
    never = asyncio.Event()
    whole = OPENAI.answer("The build ", "failed.")
    begun: list[Chunk] = [*whole[:2], never] if moment == "in mid-answer" else [never]
    async with serving(OPENAI, begun, whole) as model, ClientSession() as http:
        write_config(tmp_path, config(model))
        with DaemonProcess(tmp_path) as daemon:
            await asyncio.to_thread(daemon.ready)
            session = await call(http, daemon, "POST", "/api/sessions")
            path = f"/api/sessions/{session['id']}"
            accepted = await call(http, daemon, "POST", f"{path}/prompt", text="Why?")
            await model.asked(1)
            await asyncio.to_thread(daemon.kill)
        with DaemonProcess(tmp_path) as daemon:
            await asyncio.to_thread(daemon.ready)

            async def is_answered() -> bool:
                return not (await call(http, daemon, "GET", path))["isRunning"]

            await until(is_answered)
            # The program does not know whether its prompt has arrived, and repeats it.
            again = await call(http, daemon, "POST", f"{path}/prompt", text="Why?")
            assert again == accepted
            detail = await call(http, daemon, "GET", path)
            texts = [(each["role"], each["content"]["text"]) for each in detail["messages"]]
            assert texts == [("user", "Why?"), ("agent", "The build failed.")]
            assert detail["messages"][0]["id"] == accepted["id"]
            assert (detail["status"], len(model.requests)) == ("active", 2)
            assert await asyncio.to_thread(daemon.stop) == 0
        never.set()

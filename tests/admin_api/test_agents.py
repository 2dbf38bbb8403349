"""Agents, tools and MCP servers in the API for administration."""

import asyncio
from pathlib import Path

from gateway.errors import ProviderFailed
from tests.admin_api.harness import CONFIG, administered
from tests.api.harness import Api, Json
from tests.daemon.tools import Rocket, agent, scripted
from tests.polling import until

BROKEN_SERVER = """
[mcp.gone]
command = ["/nonexistent/server"]
"""


async def test_agents_are_listed_with_their_tools(tmp_path: Path) -> None:
    async with administered(tmp_path, before=agent(scripted(), Rocket())) as owner:
        status, found = await owner.call("GET", "/api/agents/details")
        (main,) = found["agents"]
        assert (status, main["id"], main["provider"], main["trouble"]) == (200, "main", "offline", "")
        launch, look = main["tools"]
        assert (launch["name"], launch["needsApproval"], launch["server"]) == ("launch", True, "")
        assert launch["schema"]["properties"].keys() == {"target"}
        assert (look["name"], look["needsApproval"]) == ("look", False)


async def test_an_agent_says_why_its_model_failed(tmp_path: Path) -> None:
    failing = scripted([ProviderFailed("The model is overloaded.")], [ProviderFailed("The model is overloaded.")])
    async with administered(tmp_path, before=agent(failing, Rocket())) as owner:
        session = await owner.start()
        sentences = ("The last request to the model offline/rules failed.", "failed 2 times in a row", "")
        for turns, sentence in enumerate(sentences, start=1):
            await owner.prompt(session, "hello")
            await owner.answered(session, turns)
            _, found = await owner.call("GET", "/api/agents/details")
            (main,) = found["agents"]
            assert sentence in main["trouble"]
            assert (main["lastError"], bool(main["lastErrorAt"])) == ("The model is overloaded.", True)
            assert bool(main["trouble"]) == bool(sentence)


async def test_a_tool_is_tried(tmp_path: Path) -> None:
    rocket = Rocket()
    async with administered(tmp_path, before=agent(scripted(), rocket)) as owner:
        status, found = await try_tool(owner, "launch", target="<b>pad</b>")
        assert (status, found["isError"], found["output"]) == (200, False, "launched at <b>pad</b>")
        assert rocket.launched == ["<b>pad</b>"]
        status, found = await try_tool(owner, "launch", where="pad")
        assert (status, found["isError"]) == (200, True)
        status, found = await try_tool(owner, "land")
        assert (status, "no such tool" in found["detail"]) == (404, True)


async def try_tool(owner: Api, tool: str, **args: object) -> tuple[int, Json]:
    return await owner.call("POST", f"/api/agents/main/tools/{tool}/try", {"args": args})


async def writes_a_file(tmp_path: Path) -> str:
    async with administered(tmp_path) as owner:
        status, found = await try_tool(owner, "write_file", path="trial.txt", content="hello")
        assert (status, found["isError"]) == (200, False), found
        return str((await owner.start())["id"])


def test_a_tried_tool_writes_into_no_conversation(tmp_path: Path) -> None:
    session = asyncio.run(writes_a_file(tmp_path))
    (written,) = tmp_path.rglob("trial.txt")
    assert session not in str(written)


async def test_an_mcp_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    async with administered(tmp_path, CONFIG + BROKEN_SERVER) as owner:

        async def has_failed() -> bool:
            _, found = await owner.call("GET", "/api/mcp")
            (server,) = found["servers"]
            assert server["name"] == "gone"
            return "nonexistent" in server["trouble"]

        await until(has_failed)

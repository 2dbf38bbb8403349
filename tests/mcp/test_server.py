"""Tests with real servers of the official SDK, each in a process."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from config import McpSettings
from gateway.agent.tools import Toolbox
from gateway.conversation import ToolOutcome
from gateway.doctor.peers import check_mcp
from tests.agent.wire import OPENAI, Call, Reply, serving
from tests.daemon.harness import gateway, settings
from tests.mcp.harness import PROGRAM, ROOT, TIMEOUT, call, program, running, up
from tests.polling import until
from tests.sandbox.harness import NAP, processes_with


async def test_the_tools_of_a_program_are_named_after_their_server() -> None:
    async with running(sums=program()) as servers:
        toolbox = await up(servers)
        specs = {spec.name: spec for spec in toolbox.specs()}
        assert specs["sums__add"].description == "Add two numbers."
        assert specs["sums__add"].schema["required"] == ["a", "b"]
        assert await call(toolbox, "sums__add", a=2, b=3) == ToolOutcome(id="1", output="5")


async def test_an_error_of_a_tool_is_its_result() -> None:
    async with running(sums=program()) as servers:
        toolbox = await up(servers)
        refused = await call(toolbox, "sums__refuse")
        assert refused.is_error
        assert "refuse" in refused.output
        wrong = await call(toolbox, "sums__add", a="x")
        assert wrong.is_error
        assert "b" in wrong.output


async def test_a_program_gets_only_its_configured_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_SECRET", "canary-of-ours")
    async with running(sums=program(env={"KEY": "for-the-program"})) as servers:
        told = (await call(await up(servers), "sums__environment")).output
    assert "KEY=for-the-program" in told
    assert "canary-of-ours" not in told


async def test_a_program_that_dies_is_restarted_and_until_then_its_tools_fail() -> None:
    async with running(sums=program()) as servers:
        toolbox = await up(servers)
        (server,) = servers
        assert (await call(toolbox, "sums__die")).is_error
        await until(lambda: "I have had enough" in server.trouble)
        while_down = await call(toolbox, "sums__add", a=1, b=1)
        assert while_down.is_error
        assert "sums cannot be used now" in while_down.output
        assert "I have had enough" not in while_down.output  # Stderr is only for the owner.
        await up(servers)
        assert (await call(toolbox, "sums__add", a=1, b=1)).output == "2"


async def test_a_hanging_call_times_out_and_the_server_stays_usable() -> None:
    async with running(sums=program()) as servers:
        toolbox = await up(servers)
        impatient = Toolbox([], more=lambda: [replace(tool, deadline=0.2) for tool in servers.tools()])
        hanging = await call(impatient, "sums__hang")
        assert hanging.is_error
        assert "did not finish" in hanging.output
        assert (await call(toolbox, "sums__add", a=1, b=1)).output == "2"


async def test_a_missing_program_is_named() -> None:
    async with running(sums=McpSettings(command=("/nowhere/at-all",))) as servers:
        (server,) = servers
        await until(lambda: "being started" not in server.trouble)
        assert server.trouble == "there is no program /nowhere/at-all"
        assert list(servers.tools()) == []


async def test_new_settings_restart_only_changed_servers() -> None:
    async with running(one=program(), two=program()) as servers:
        await up(servers)
        kept, _ = servers
        await servers.reload({"one": program(), "three": program(env={"A": "b"})})
        await up(servers)
        assert [server.name for server in servers] == ["one", "three"]
        assert next(iter(servers)) is kept


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    """Run the program as an HTTP server; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAM, str(port), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.wait()


async def test_a_running_server_is_reached_by_its_url() -> None:
    async with served() as url:
        settings = McpSettings.model_validate({"url": url, "headers": {"Authorization": "Bearer canary"}, "timeout": 5})
        async with running(far=settings) as servers:
            toolbox = await up(servers)  # It may need some tries until the server listens.
            assert (await call(toolbox, "far__add", a=20, b=1)).output == "21"
            assert (await call(toolbox, "far__headers")).output == "Bearer canary"


LIMIT = 100_000


async def test_a_result_over_the_limit_fails_only_its_own_call() -> None:
    async with running(sums=program(max_result_bytes=LIMIT)) as servers:
        toolbox = await up(servers)
        large, small = await asyncio.gather(
            call(toolbox, "sums__letters", number=10 * LIMIT), call(toolbox, "sums__add", a=1, b=1)
        )
        assert large.is_error
        assert "The result of letters is larger than 100,000 bytes, so it was not read." in large.output
        assert small == ToolOutcome(id="1", output="2")
        assert not any(server.trouble for server in servers)
        # The largest text that fits next to the rest of the message.
        assert not (await call(toolbox, "sums__letters", number=LIMIT // 2 - 1_000)).is_error


async def test_a_response_over_the_limit_fails_only_its_own_call() -> None:
    async with served() as url:
        settings = McpSettings.model_validate({"url": url, "timeout": 5, "max_result_bytes": LIMIT})
        async with running(far=settings) as servers:
            toolbox = await up(servers)
            large = await call(toolbox, "far__letters", number=10 * LIMIT)
            assert large.is_error
            assert "The result of letters is larger than 100,000 bytes, so it was not read." in large.output
            assert (await call(toolbox, "far__add", a=1, b=1)).output == "2"
            assert not any(server.trouble for server in servers)


async def test_a_server_that_reads_no_answers_is_read_no_further(tmp_path: Path) -> None:
    """Each of its requests would take a task that waits to send the answer."""
    verdict = tmp_path / "verdict"
    flood = McpSettings(command=(sys.executable, "-c", _FLOOD, str(verdict)))
    async with running(flood=flood):
        await until(verdict.exists)
        assert len(asyncio.all_tasks()) < 100
    assert verdict.read_text() == "blocked"


_FLOOD = """
import json, os, pathlib, select, sys
def answer(request, result):
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "initialize":
        version = request["params"]["protocolVersion"]
        about = {"name": "flood", "version": "1"}
        answer(request, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about})
    elif request["method"] == "tools/list":
        answer(request, {"tools": []})
        break
    elif "id" in request:
        error = {"code": -32601, "message": "unknown"}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}), flush=True)
verdict = "unlimited"
for number in range(50_000):
    if not select.select([], [1], [], 2)[1]:
        verdict = "blocked"
        break
    os.write(1, json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"}).encode() + b"\\n")
pathlib.Path(sys.argv[1] + ".new").write_text(verdict)
os.rename(sys.argv[1] + ".new", sys.argv[1])
sys.stdin.read()
"""


async def test_a_tool_with_a_large_schema_is_left_out() -> None:
    async with running(sums=program(env={"HUGE_TOOL": "50000"})) as servers:
        toolbox = await up(servers)
        (server,) = servers
        assert "sums__huge" not in {spec.name for spec in toolbox.specs()}
        (left_out,) = server.left_out
        assert left_out.name == "huge"
        assert left_out.reason.endswith("and max_schema_bytes is 32,000")
        assert (await call(toolbox, "sums__add", a=1, b=1)).output == "2"


async def test_tools_beyond_the_number_are_left_out() -> None:
    async with running(sums=program(max_tools=2)) as servers:
        toolbox = await up(servers)
        (server,) = servers
        assert [spec.name for spec in toolbox.specs()] == ["sums__add", "sums__refuse"]
        assert "environment" in {each.name for each in server.left_out}


async def test_a_daemonised_process_of_a_program_ends_with_it() -> None:
    async with running(sums=program()) as servers:
        toolbox = await up(servers)
        assert (await call(toolbox, "sums__daemonise", seconds=f"{NAP}1")).output == "started"
    assert processes_with(f"{NAP}1") == []


async def test_processes_of_a_program_that_dies_end_with_it() -> None:
    async with running(sums=program()) as servers:
        toolbox = await up(servers)
        assert (await call(toolbox, "sums__daemonise", seconds=f"{NAP}2")).output == "started"
        assert (await call(toolbox, "sums__die")).is_error
        assert await asyncio.to_thread(processes_with, f"{NAP}2") == []


HOST = """
import asyncio
from tests.mcp.harness import call, program, running, up

async def main():
    async with running(sums=program()) as servers:
        print((await call(await up(servers), "sums__daemonise", seconds="{nap}")).output, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_all_processes_of_a_program_end_when_the_daemon_is_killed() -> None:
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOST.format(nap=f"{NAP}3"), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert host.stdout is not None
    async with asyncio.timeout(TIMEOUT):
        while await host.stdout.readline() != b"started\n":
            pass
    host.kill()
    await host.wait()
    assert await asyncio.to_thread(processes_with, f"{NAP}3") == []


async def test_an_agent_calls_the_tools_of_a_server(tmp_path: Path) -> None:
    script: list[Reply] = [OPENAI.answer(calls=[Call("sums__add", ['{"a": 40, "b": 2}'])]), OPENAI.answer("It is 42.")]
    async with serving(OPENAI, *script) as model:
        tables = {"fake": model.table()}, {"main": {"provider": "fake", "model": "m", "tools": ["sums__*"]}}
        configured = settings(tmp_path, providers=tables[0], agents=tables[1], mcp={"sums": program()})
        async with gateway(configured) as (daemon, chat):
            await until(lambda: any(spec.name == "sums__add" for spec in daemon.agents["main"].toolbox.specs()))
            await chat.say("what is 40 and 2?")
            assert (await chat.hear_message()).text == "It is 42."
            await chat.say("/tools")
            assert "sums__add - Add two numbers." in (await chat.hear_message()).text
    first, second = (request.body for request in model.requests)
    assert {tool["function"]["name"].partition("__")[0] for tool in first["tools"]} == {"sums"}
    assert second["messages"][-1]["content"] == "42"


async def test_tools_and_status_name_tools_that_were_left_out(tmp_path: Path) -> None:
    configured = settings(tmp_path, mcp={"sums": program(env={"HUGE_TOOL": "50000"})})
    async with gateway(configured) as (daemon, chat):
        (server,) = daemon.mcp
        await until(lambda: not server.trouble)
        await chat.say("/tools")
        assert "Left out: huge of sums: its schema has 50," in (await chat.hear_message()).text
        await chat.say("/status")
        assert "Left out of the MCP server sums: 1 tool. /tools says why." in (await chat.hear_message()).text
        assert [finding.about for finding in check_mcp(daemon.mcp) if "`huge` is left out" in finding.message]


async def test_waiting_for_ready_returns_once_the_tools_are_known() -> None:
    async with running(sums=program()) as servers:
        (server,) = servers
        assert not server.ready.is_set()
        await servers.wait_ready()
        assert server.ready.is_set()

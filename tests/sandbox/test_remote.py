"""Tests of the sandbox service over a real socket. The sandbox has its tests in tests/agent/toolbox/test_shell.py."""

import asyncio
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import structs

from config import ShellSettings, load
from gateway.agent.toolbox.shell import make_shell
from gateway.agent.tools import Toolbox, ToolContext
from gateway.conversation import ToolCall, ToolOutcome
from gateway.sandbox.remote import serve_commands
from gateway.sandbox.service_socket import MAX_LINE
from tests.polling import until
from tests.sandbox.harness import NAP, needs_sandbox, processes_with, service

pytestmark = needs_sandbox


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return ToolContext(workspace=workspace, memory=tmp_path / "memory", now=lambda: datetime.now(UTC))


async def run(command: str, context: ToolContext, path: Path, **changes: object) -> ToolOutcome:
    settings = ShellSettings.model_validate({"enabled": True, "sandbox_socket": path, **changes})
    call = ToolCall(id="call_1", name="shell", input={"command": command})
    return await Toolbox([make_shell(settings)]).run(call, context)


async def test_the_service_runs_a_command_like_the_gateway(context: ToolContext, tmp_path: Path) -> None:
    async with service(tmp_path / "socket"):
        outcome = await run("pwd; echo made > file; exit 3", context, tmp_path / "socket")
        assert (outcome.output, outcome.is_error) == ("/workspace\n[Exit code 3.]", False)
        long = await run("head -c 200000 /dev/zero | tr '\\0' '\\1'", context, tmp_path / "socket")
        assert "bytes left out" in long.output
        late = await run(f"sleep {NAP}21", context, tmp_path / "socket", timeout=1.0)
        assert late.output == "[The command was stopped: it took longer than 1 seconds.]"
    assert (context.workspace / "file").read_text() == "made\n"
    assert not processes_with(f"{NAP}21")


async def test_a_command_in_the_service_can_read_the_attachments(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "report.txt").write_text("attached")
    async with service(tmp_path / "socket"):
        given = structs.replace(context, attachments=tmp_path / "files")
        outcome = await run("cat /attachments/report.txt; echo x > /attachments/new", given, tmp_path / "socket")
    assert outcome.output.startswith("attached")
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["report.txt"]


async def test_stopping_the_turn_ends_the_command_in_the_service(context: ToolContext, tmp_path: Path) -> None:
    async with service(tmp_path / "socket"), asyncio.TaskGroup() as group:
        turn = group.create_task(run(f"echo > begun; sleep {NAP}22", context, tmp_path / "socket"), name="turn")
        await until((context.workspace / "begun").exists)
        turn.cancel()
        await asyncio.wait({turn})
        assert not processes_with(f"{NAP}22")


async def test_commands_of_a_stopped_service_are_not_run_again(context: ToolContext, tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        async with service(tmp_path / "socket") as serving:
            begun = run(f"echo >> begun; sleep {NAP}23", context, tmp_path / "socket", allow_unsandboxed=True)
            turn = group.create_task(begun, name="turn")
            # The shell creates the file a moment before it writes to it.
            await until(lambda: any(each.read_text() for each in context.workspace.glob("begun")))
            serving.cancel()
        outcome = await turn
    assert outcome.output == "[The command was stopped: the service that runs commands has ended.]"
    assert (context.workspace / "begun").read_text() == "\n"
    assert not processes_with(f"{NAP}23")


async def test_a_missing_service_is_reported_with_the_next_step(context: ToolContext, tmp_path: Path) -> None:
    outcome = await run("true", context, tmp_path / "none")
    assert outcome.is_error
    assert "cannot be reached" in outcome.output
    assert "systemctl status gatehouse-sandbox" in outcome.output


@pytest.mark.parametrize("has_network", [False, True])
async def test_a_command_with_network_runs_only_if_the_service_has_one(
    has_network: bool,  # noqa: FBT001 - pytest gives it.
    context: ToolContext,
    tmp_path: Path,
) -> None:
    async with service(tmp_path / "socket", has_network=has_network):
        outcome = await run("echo done", context, tmp_path / "socket", network=True)
    assert ("--shell-network" in outcome.output, outcome.output == "done") == (not has_network, has_network)


async def test_an_idle_service_exits(context: ToolContext, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(serve_commands(listener, idle=0.3), name="sandbox")
            outcome = await run("sleep 1; echo done", context, tmp_path / "socket")
    assert outcome.output == "done"


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b"[]\n", b'{"command": 1}\n', b"\xff\n", b"x" * (MAX_LINE + 10), b""])
async def test_an_invalid_request_gets_no_answer(line: bytes, tmp_path: Path) -> None:
    async with service(tmp_path / "socket"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
        writer.write(line)
        writer.write_eof()
        with suppress(ConnectionResetError):  # It did not read it all.
            assert await reader.read() == b""
        writer.close()


async def test_commands_beyond_the_limit_wait(context: ToolContext, tmp_path: Path) -> None:
    async with service(tmp_path / "socket"), asyncio.TaskGroup() as group:
        silent = [await asyncio.open_unix_connection(tmp_path / "socket") for _ in range(64)]
        waiting = group.create_task(run("echo done", context, tmp_path / "socket"), name="turn")
        for _, writer in silent:
            writer.close()
        assert (await waiting).output == "done"


def test_the_socket_is_taken_from_the_environment(tmp_path: Path) -> None:
    variable = {"GATEHOUSE_SANDBOX_SOCKET": "/run/some.socket"}
    assert load(None, variable).settings.tools.shell.sandbox_socket == Path("/run/some.socket")
    file = tmp_path / "gatehouse.toml"
    file.write_text('[tools.shell]\nsandbox_socket = "/run/mine.socket"\n')
    assert load(file, variable).settings.tools.shell.sandbox_socket == Path("/run/mine.socket")
    assert load(None, {}).settings.tools.shell.sandbox_socket is None

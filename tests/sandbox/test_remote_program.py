"""Tests of the sandbox service with programs. Those of tests/sandbox/test_program.py run with the service as well."""

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.sandbox import remote_program
from gateway.sandbox.bubblewrap import SandboxUnavailable
from gateway.sandbox.program import ProgramExit, open_program, run_program
from gateway.sandbox.remote import serve_commands
from tests.sandbox.harness import NAP, needs_sandbox, processes_with, sandboxed_shell, service

pytestmark = needs_sandbox


async def test_a_program_with_network_needs_a_service_with_network(tmp_path: Path) -> None:
    program = sandboxed_shell("echo ran", tmp_path, network=True)
    async with service(tmp_path / "socket"):
        with pytest.raises(SandboxUnavailable, match="--shell-network"):
            await run_program(program, seconds=60, max_output=100, service=tmp_path / "socket")


async def test_a_missing_service_is_named(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="systemctl status gatehouse-sandbox"):
        await run_program(sandboxed_shell("true", tmp_path), seconds=60, max_output=100, service=tmp_path / "none")


async def test_a_service_that_reads_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_program, "_START_TIMEOUT", 0.2)
    program = replace(sandboxed_shell("true", tmp_path), env={"LONG": "x" * 3_000_000})
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        with pytest.raises(SandboxUnavailable, match="systemctl status gatehouse-sandbox"):
            await run_program(program, seconds=60, max_output=100, service=tmp_path / "socket")


async def test_an_older_service_that_hangs_up_is_named(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    async with await asyncio.start_unix_server(hang_up, tmp_path / "socket"), asyncio.timeout(60):
        with pytest.raises(SandboxUnavailable, match="systemctl restart gatehouse-sandbox"):
            await run_program(
                sandboxed_shell("true", tmp_path), seconds=60, max_output=100, service=tmp_path / "socket"
            )


@pytest.mark.parametrize(
    ("request_", "answer"),
    [({"version": 2, "program": {}}, "another version"), ({"version": 1, "program": {"argv": []}}, "")],
    ids=["newer", "invalid"],
)
async def test_a_request_of_another_version_is_answered(request_: object, answer: str, tmp_path: Path) -> None:
    async with service(tmp_path / "socket"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
        writer.write(json.dumps(request_).encode() + b"\n")
        assert answer in (await reader.readline()).decode()
        assert await reader.read() == b""
        writer.close()


async def test_a_program_without_its_pipes_is_not_started(tmp_path: Path) -> None:
    program = {"argv": ["/bin/touch", str(tmp_path / "ran")], "env": {}, "path": [], "cwd": str(tmp_path)}
    folders = {"writable": [str(tmp_path)], "readable": [], "hidden": [], "home": None, "attachments": None}
    limits = {"network": False, "limits": {"memory_bytes": 10**9, "processes": 10}}
    async with service(tmp_path / "socket"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
        writer.write(json.dumps({"version": 1, "program": {**program, **folders, **limits}}).encode() + b"\n")
        assert await reader.read() == b""
        writer.close()
    assert not (tmp_path / "ran").exists()


async def test_programs_do_not_take_the_slots_of_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.sandbox.remote._MAX_CONCURRENT", 1)
    async with service(tmp_path / "socket"), asyncio.timeout(60):
        program = sandboxed_shell("echo started; cat", tmp_path)
        async with (
            open_program(program, tmp_path / "socket") as first,
            open_program(program, tmp_path / "socket") as second,
        ):
            assert await first.stdout.readline() == await second.stdout.readline() == b"started\n"


async def test_the_service_does_not_end_while_a_program_runs(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            serving = group.create_task(serve_commands(listener, idle=0.2), name="sandbox")
            async with open_program(sandboxed_shell("sleep 1; echo done", tmp_path), tmp_path / "socket") as program:
                assert await program.stdout.readline() == b"done\n"
                assert not serving.done()


async def test_a_stopped_service_ends_its_programs(tmp_path: Path) -> None:
    async with asyncio.timeout(60):
        async with service(tmp_path / "socket") as serving:
            running = open_program(sandboxed_shell(f"echo; sleep {NAP}61", tmp_path), tmp_path / "socket")
            async with running as program:
                assert await program.stdout.readline() == b"\n"
                serving.cancel()
                assert await program.wait() == ProgramExit(1, "the service that runs programs has ended")
                await program.end()
    assert not processes_with(f"{NAP}61")

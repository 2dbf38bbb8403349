import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.acp.client_terminals import (
    MAX_KEPT,
    MAX_OUTPUT_BYTES,
    MAX_RUNNING,
    ClientTerminals,
    OutputTail,
    TerminalExit,
)
from gateway.errors import ClientRefused
from gateway.sandbox.bubblewrap import SandboxLimits
from gateway.sandbox.program import SandboxedProgram
from tests.polling import until
from tests.sandbox.harness import NAP, needs_sandbox, processes_with, service

LIMITS = SandboxLimits(memory_bytes=256 * 1024**2, processes=64)
PATIENCE = 60.0


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "repo"
    folder.mkdir()
    (folder / "src").mkdir()
    (folder / "out").symlink_to("/etc")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("hunter2")
    return folder


@pytest.fixture
async def terminals(workspace: Path) -> AsyncIterator[ClientTerminals]:
    program = SandboxedProgram(
        argv=("/bin/true",), env={"API_KEY": "hunter2"}, cwd=workspace, writable=(workspace,), limits=LIMITS
    )
    opened = ClientTerminals(program, workspace, env={"FOR_COMMANDS": "yes"})
    async with asyncio.timeout(PATIENCE):
        yield opened
    await opened.aclose()


async def run(terminals: ClientTerminals, command: str, *args: str, **more: object) -> tuple[str, TerminalExit]:
    """Run a command to its end and return its output."""
    terminal = await terminals.create(command, args, **more)  # type: ignore[arg-type]  # mixed values
    ended = await terminals.wait_for_exit(terminal)
    output = terminals.output(terminal)
    assert output.exit == ended
    await terminals.release(terminal)
    return output.text, ended


@needs_sandbox
async def test_a_shell_line_runs_in_the_workspace(terminals: ClientTerminals, workspace: Path) -> None:
    text, ended = await run(terminals, "pwd; echo made > made.txt; echo problem >&2; exit 3")
    assert (text, ended) == (f"{workspace}\nproblem\n", TerminalExit(exit_code=3))
    assert (workspace / "made.txt").read_text() == "made\n"


@needs_sandbox
async def test_a_program_is_found_by_its_name_and_gets_its_arguments_as_they_are(terminals: ClientTerminals) -> None:
    text, ended = await run(terminals, "printf", "%s|", "a b", "$HOME", "'\"", "")
    assert (text, ended) == ("a b|$HOME|'\"||", TerminalExit(exit_code=0))


@needs_sandbox
async def test_an_unknown_program_fails_as_in_a_shell(terminals: ClientTerminals) -> None:
    text, ended = await run(terminals, "no-such-program", "--version")
    assert ended.exit_code == 127
    assert "not found" in text


@needs_sandbox
async def test_a_command_gets_its_variables_and_none_of_the_agent(terminals: ClientTerminals) -> None:
    text, _ = await run(terminals, 'echo "$GIVEN" "$API_KEY" "$FOR_COMMANDS"', env={"GIVEN": "a=b\nc"})
    assert text == "a=b\nc  yes\n"


@needs_sandbox
async def test_a_command_runs_in_the_folder_it_asks_for(terminals: ClientTerminals, workspace: Path) -> None:
    assert (await run(terminals, "pwd", cwd=f"{workspace}/src/."))[0] == f"{workspace}/src\n"


async def test_a_folder_outside_the_workspace_is_refused(terminals: ClientTerminals, workspace: Path) -> None:
    for cwd in ("/", "/etc", f"{workspace}/..", f"{workspace}/out", f"{workspace}/src/../../secret"):
        with capture_logs() as logs, pytest.raises(ClientRefused, match="outside the workspace"):
            await terminals.create("pwd", cwd=cwd)
        assert [(entry["event"], entry["security"]) for entry in logs] == [("workspace_escape_refused", True)]


async def test_a_folder_that_is_none_is_refused(terminals: ClientTerminals, workspace: Path) -> None:
    (workspace / "file").touch()
    for cwd in (f"{workspace}/missing", f"{workspace}/file", f"{workspace}/a\0b", "src", ""):
        with pytest.raises(ClientRefused, match=r"not a folder|not an absolute path"):
            await terminals.create("pwd", cwd=cwd)


@needs_sandbox
async def test_a_command_sees_nothing_beside_the_workspace(terminals: ClientTerminals, workspace: Path) -> None:
    text, ended = await run(terminals, f"cat {workspace}/../secret/key")
    assert ended.exit_code == 1
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("command", "args", "env", "reason"),
    [
        ("", (), {}, "empty"),
        (" \n", ("x",), {}, "empty"),
        ("echo \0", (), {}, "zero byte"),
        ("echo", ("\0",), {}, "zero byte"),
        ("env", (), {"A": "x\0--bind\0/\0/mnt"}, "zero byte"),
        ("env", (), {"A=B": "x"}, "name"),
        ("env", (), {"": "x"}, "name"),
        ("echo", ("\ud800",), {}, "not valid text"),
        ("echo", ("x" * 200_000,), {}, "too long"),
    ],
)
async def test_commands_that_cannot_run_are_refused(
    terminals: ClientTerminals, command: str, args: tuple[str, ...], env: dict[str, str], reason: str
) -> None:
    with pytest.raises(ClientRefused, match=reason):
        await terminals.create(command, args, env)


@needs_sandbox
async def test_a_command_that_asks_for_input_does_not_wait_for_it(terminals: ClientTerminals) -> None:
    assert await run(terminals, "cat; echo end") == ("end\n", TerminalExit(exit_code=0))


@needs_sandbox
async def test_the_output_of_a_running_command_can_be_read(terminals: ClientTerminals, workspace: Path) -> None:
    terminal = await terminals.create("echo begin; while [ ! -e go ]; do sleep 0.01; done; echo end")
    await until(lambda: terminals.output(terminal).text == "begin\n")
    assert terminals.output(terminal).exit is None
    (workspace / "go").touch()
    assert await terminals.wait_for_exit(terminal) == TerminalExit(exit_code=0)
    assert terminals.output(terminal).text == "begin\nend\n"


@needs_sandbox
async def test_only_the_end_of_a_long_output_is_kept(terminals: ClientTerminals) -> None:
    terminal = await terminals.create("seq 100000", output_byte_limit=100)
    await terminals.wait_for_exit(terminal)
    output = terminals.output(terminal)
    assert output.is_truncated
    assert output.text == "".join(f"{number}\n" for number in range(1, 100_001))[-100:]


@needs_sandbox
async def test_no_output_is_longer_than_the_maximum(terminals: ClientTerminals) -> None:
    terminal = await terminals.create("head -c 5000000 /dev/zero | tr '\\0' x", output_byte_limit=1 << 40)
    await terminals.wait_for_exit(terminal)
    assert len(terminals.output(terminal).text) == MAX_OUTPUT_BYTES


@needs_sandbox
async def test_a_killed_command_keeps_its_output(terminals: ClientTerminals) -> None:
    terminal = await terminals.create(f"echo begin; exec sleep {NAP}01")
    await until(lambda: terminals.output(terminal).text == "begin\n")
    await terminals.kill(terminal)
    ended = await terminals.wait_for_exit(terminal)
    assert ended.signal == "SIGTERM"
    assert terminals.output(terminal).text == "begin\n"
    assert not processes_with(f"{NAP}01")
    await terminals.kill(terminal)  # Once more does no harm.


@needs_sandbox
async def test_kill_reaches_processes_that_ignore_it_and_left_the_group(terminals: ClientTerminals) -> None:
    terminal = await terminals.create(f"trap '' TERM; setsid sleep {NAP}02 & echo begin; sleep {NAP}02")
    await until(lambda: terminals.output(terminal).text == "begin\n")
    await terminals.kill(terminal)
    assert not processes_with(f"{NAP}02")


@needs_sandbox
async def test_a_released_terminal_is_gone_and_its_waiter_is_told(terminals: ClientTerminals) -> None:
    terminal = await terminals.create(f"sleep {NAP}03")
    async with asyncio.TaskGroup() as group:
        waiter = group.create_task(terminals.wait_for_exit(terminal))
        await asyncio.sleep(0)
        await terminals.release(terminal)
    assert waiter.result() == TerminalExit(exit_code=None, signal="SIGKILL")
    assert not processes_with(f"{NAP}03")
    for attempt in (terminals.wait_for_exit(terminal), terminals.kill(terminal), terminals.release(terminal)):
        with pytest.raises(ClientRefused, match="no terminal"):
            await attempt
    with pytest.raises(ClientRefused, match="no terminal"):
        terminals.output(terminal)


@needs_sandbox
async def test_the_end_of_the_session_ends_all_commands(terminals: ClientTerminals) -> None:
    for _ in range(3):
        await terminals.create(f"trap '' TERM; sleep {NAP}04; sleep {NAP}04")
    await terminals.aclose()
    assert not processes_with(f"{NAP}04")
    with pytest.raises(ClientRefused, match="session has ended"):
        await terminals.create("true")


@needs_sandbox
async def test_the_session_ends_while_a_command_starts(terminals: ClientTerminals) -> None:
    async with asyncio.TaskGroup() as group:
        starts = [group.create_task(refusal(terminals, f"sleep {NAP}05")) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)
        await terminals.aclose()
    assert all("session has ended" in start.result() for start in starts)
    assert not processes_with(f"{NAP}05")


async def refusal(terminals: ClientTerminals, command: str) -> str:
    with pytest.raises(ClientRefused) as refused:
        await terminals.create(command)
    return str(refused.value)


@needs_sandbox
async def test_a_cancelled_start_leaves_no_process(terminals: ClientTerminals) -> None:
    async with asyncio.TaskGroup() as group:
        for wait in (0.0, 0.002, 0.01, 0.02):
            start = group.create_task(terminals.create(f"sleep {NAP}06"))
            await asyncio.sleep(wait)  # To be anywhere in the start.
            if start.cancel():
                await asyncio.wait({start})
            else:
                await terminals.release(start.result())
    assert not processes_with(f"{NAP}06")


@needs_sandbox
async def test_only_so_many_commands_run_at_a_time(terminals: ClientTerminals) -> None:
    running = [await terminals.create(f"sleep {NAP}07") for _ in range(MAX_RUNNING)]
    with pytest.raises(ClientRefused, match="8 commands are running"):
        await terminals.create("true")
    await terminals.kill(running[0])
    await run(terminals, "true")


@needs_sandbox
async def test_terminals_that_are_never_released_are_forgotten_in_the_end(terminals: ClientTerminals) -> None:
    made = []
    for number in range(MAX_KEPT + 2):
        made.append(await terminals.create(f"echo {number}"))
        await terminals.wait_for_exit(made[-1])
    for old in made[:2]:
        with pytest.raises(ClientRefused, match="no terminal"):
            terminals.output(old)
    assert [terminals.output(each).text for each in made[2:4]] == ["2\n", "3\n"]


@needs_sandbox
async def test_a_command_that_takes_too_much_memory_is_stopped_and_says_so(terminals: ClientTerminals) -> None:
    text, ended = await run(terminals, "python3 -c 'x = bytearray(400 << 20); import time; time.sleep(1000)'")
    assert "[Stopped: " in text
    assert "memory" in text
    assert ended.signal == "SIGKILL"


@needs_sandbox
async def test_the_sandbox_service_runs_the_commands(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    program = SandboxedProgram(argv=(), env={}, cwd=workspace, writable=(workspace,), limits=LIMITS)
    socket = tmp_path_factory.mktemp("service") / "socket"
    terminals = ClientTerminals(program, workspace, socket, env={})
    async with asyncio.timeout(PATIENCE), service(socket, has_network=False):
        assert await run(terminals, "pwd; exit 3") == (f"{workspace}\n", TerminalExit(exit_code=3))
        killed = await terminals.create(f"exec sleep {NAP}08")
        await terminals.kill(killed)
        assert (await terminals.wait_for_exit(killed)).signal == "SIGTERM"
        await terminals.create(f"trap '' TERM; sleep {NAP}08; sleep {NAP}08")
        await terminals.aclose()
    assert not processes_with(f"{NAP}08")


async def test_a_sandbox_that_cannot_be_made_is_a_refusal(workspace: Path) -> None:
    program = SandboxedProgram(argv=(), env={}, cwd=workspace, writable=(workspace / "gone",), limits=LIMITS)
    terminals = ClientTerminals(program, workspace, env={})
    with pytest.raises(ClientRefused, match="does not exist"):
        await terminals.create("true")
    await terminals.aclose()


@given(text=st.text(), limit=st.integers(0, 40), size=st.integers(1, 9))
@example(text="\U00010000", limit=3, size=1)
def test_the_tail_of_a_text_is_cut_between_characters(text: str, limit: int, size: int) -> None:
    data, tail = text.encode("utf-8", "replace"), OutputTail(limit)
    text = data.decode()
    for at in range(0, len(data), size):
        tail.add(data[at : at + size])
        assert text.startswith(tail.text(is_complete=False)) or tail.is_truncated
    kept = tail.text(is_complete=True)
    assert text.endswith(kept)
    assert len(kept.encode()) <= limit
    assert len(kept.encode()) > limit - 4 or kept == text
    assert tail.is_truncated == (kept != text)


@given(data=st.binary(max_size=100), limit=st.integers(0, 40))
def test_the_tail_of_any_bytes_is_text_within_the_limit(data: bytes, limit: int) -> None:
    tail = OutputTail(limit)
    tail.add(data)
    for is_complete in (False, True):
        assert len(tail.text(is_complete=is_complete).encode()) <= limit


@given(
    cwd=st.lists(st.sampled_from(["..", ".", "", "src", "out", "etc", "repo", "secret", "\0", "missing"])).map("/".join)
)
async def test_a_command_runs_inside_or_is_refused(tmp_path_factory: pytest.TempPathFactory, cwd: str) -> None:
    """The sandbox has no folders to show here, so that a good folder is refused as well, by the sandbox."""
    folder = tmp_path_factory.getbasetemp().resolve() / f"repo-{os.getpid()}"
    (folder / "src").mkdir(parents=True, exist_ok=True)
    if not (folder / "out").is_symlink():
        (folder / "out").symlink_to("/etc")
    program = SandboxedProgram(argv=(), env={}, cwd=folder, writable=(), limits=LIMITS)
    terminals = ClientTerminals(program, folder, env={})
    given = f"{folder}/{cwd}"
    with capture_logs(), pytest.raises(ClientRefused) as refused:
        await terminals.create("true", cwd=given)
    await terminals.aclose()
    assert ("not in the sandbox" in str(refused.value)) == is_folder_inside(folder, given)


def is_folder_inside(folder: Path, path: str) -> bool:
    resolved = Path(os.path.realpath(path)) if "\0" not in path else Path("/")
    return resolved.is_relative_to(folder) and resolved.is_dir()

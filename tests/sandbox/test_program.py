"""Tests of long-lived programs in a sandbox, through their pipes."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.sandbox.bubblewrap import SandboxUnavailable
from gateway.sandbox.program import AGENT_HOME, ProgramExit, open_program, run_program
from tests.polling import until
from tests.sandbox.harness import NAP, needs_sandbox, processes_with, service
from tests.sandbox.harness import sandboxed_shell as shell

pytestmark = needs_sandbox

MEGABYTES = 8 * 1024**2


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


@pytest.fixture(params=["here", "service"])
async def socket(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Path | None]:
    """Each test runs with a sandbox that is made here, and with one that the service makes."""
    if request.param == "here":
        yield None
        return
    path = tmp_path_factory.mktemp("service") / "socket"
    async with service(path, has_network=True):
        yield path


async def test_a_program_answers_through_its_pipes(repository: Path, socket: Path | None) -> None:
    async with open_program(
        shell("while read -r line; do echo got $line; done; exit 7", repository), socket
    ) as program:
        for word in ("one", "two"):
            program.stdin.write(f"{word}\n".encode())
            assert await program.stdout.readline() == f"got {word}\n".encode()
        program.stdin.close()
        assert await program.wait() == ProgramExit(7)
        assert await program.stdout.read() == b""


async def test_megabytes_pass_in_both_directions(repository: Path, socket: Path | None) -> None:
    sent = bytes(range(256)) * (MEGABYTES // 256)
    async with open_program(shell("cat", repository), socket) as program, asyncio.TaskGroup() as group:

        async def write() -> None:
            program.stdin.write(sent)
            await program.stdin.drain()
            program.stdin.close()

        group.create_task(write(), name="writer")
        received = bytearray()
        while chunk := await program.stdout.read(65_536):
            received += chunk
    assert received == sent


async def test_a_flood_of_errors_blocks_nothing(repository: Path, socket: Path | None) -> None:
    script = (
        f"head -c {MEGABYTES} /dev/zero | tr '\\0' x >&2; printf '\\n\\033[31mred\\033[0m\\a last\\n' >&2; echo done"
    )
    async with open_program(shell(script, repository), socket) as program:
        assert await program.stdout.readline() == b"done\n"
        await program.wait()
        assert program.stderr_tail().endswith("x\nred last")
        assert len(program.stderr_tail()) <= 4096


async def test_the_tail_has_few_lines(repository: Path, socket: Path | None) -> None:
    async with open_program(shell("seq 100 >&2", repository), socket) as program:
        await program.wait()
        assert program.stderr_tail().splitlines() == [str(number) for number in range(61, 101)]


async def test_end_asks_before_it_kills(repository: Path, socket: Path | None) -> None:
    script = "trap 'echo asked; exit 4' TERM; echo trapped; while :; do sleep 0.1; done"
    async with open_program(shell(script, repository), socket) as program:
        assert await program.stdout.readline() == b"trapped\n"
        await program.end(grace=30.0)
        assert await program.stdout.read() == b"asked\n"
        assert await program.wait() == ProgramExit(4)


async def test_end_kills_processes_that_ignore_it_or_hide(repository: Path, socket: Path | None) -> None:
    nap = f"{NAP}41"
    script = f"trap '' TERM; (setsid sleep {nap} &); setsid nohup sleep {nap} & sleep {nap} & echo started; sleep {nap}"
    async with open_program(shell(script, repository), socket) as program:
        assert await program.stdout.readline() == b"started\n"
        await program.end(grace=0.2)
        await program.end()
        assert (await program.wait()).code != 0
        assert not processes_with(nap)


async def test_leaving_kills_everything(repository: Path, socket: Path | None) -> None:
    async with open_program(
        shell(f"(setsid sleep {NAP}42 &); echo started; sleep {NAP}42", repository), socket
    ) as program:
        assert await program.stdout.readline() == b"started\n"
    assert not processes_with(f"{NAP}42")


async def test_an_error_of_the_caller_passes_unchanged(repository: Path, socket: Path | None) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_program(shell(f"sleep {NAP}43", repository), socket):
            raise KeyError("mine")
    assert not processes_with(f"{NAP}43")


async def test_variables_are_on_no_command_line(repository: Path, socket: Path | None) -> None:
    program = shell(
        'echo "$KEY $HOME $PATH $PWD"; read -r end', repository, env={"KEY": "canary-key"}, path=("/opt/x",)
    )
    async with open_program(program, socket) as running:
        said = (await running.stdout.readline()).decode()
        assert said.startswith(f"canary-key {AGENT_HOME} /opt/x:/usr/local/bin:")
        assert said.endswith(f" {repository}\n")
        assert not processes_with("canary-key")
    assert "canary-key" not in repr(program)


async def test_folders_are_at_their_own_paths(repository: Path, tmp_path: Path, socket: Path | None) -> None:
    tools, home, secret = tmp_path / "tools", tmp_path / "home", tmp_path / "secret"
    for folder in (tools, tools / "inside", home, secret):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    script = f"""
        cat {tools}/file {tools}/inside/file {AGENT_HOME}/file; echo
        for place in {repository} {tools} {tools}/inside {AGENT_HOME} / /usr /tmp; do
            touch $place/new && echo $place
        done
        ls {tmp_path}
    """
    shown = {"readable": (tools, tmp_path / "missing"), "writable": (repository, tools / "inside"), "home": home}
    ended = await run_program(
        shell(f"exec 2>&-;{script}", repository, **shown), seconds=60, max_output=10_000, service=socket
    )
    read, *lines = ended.output.splitlines()
    assert read == "toolsinsidehome"
    assert lines == [f"{repository}", f"{tools}/inside", AGENT_HOME, "/tmp", "repository", "tools"]  # noqa: S108 - inside.
    assert (home / "new").exists()


async def test_a_hidden_folder_is_empty_except_for_what_is_shown(tmp_path: Path, socket: Path | None) -> None:
    repository, data = tmp_path, tmp_path / "data"
    worktree = data / "worktrees" / "one"
    worktree.mkdir(parents=True)
    (data / "control.token").write_text("secret")
    (repository / "file").write_text("x")
    script = f"ls {repository} {data}; touch {worktree}/new; touch {data}/new"
    program = shell(script, repository, hidden=(data,), writable=(repository, worktree))
    ended = await run_program(program, seconds=60, max_output=10_000, service=socket)
    assert "control.token" not in ended.output
    assert (worktree / "new").exists()
    assert not (data / "new").exists()
    with pytest.raises(SandboxUnavailable, match="must not show"):
        await run_program(
            shell("true", data, hidden=(data,), writable=(data,)), seconds=60, max_output=10_000, service=socket
        )


@pytest.mark.parametrize("path", ["/", "/home", "/etc", "/proc/1", "/usr", "/tmp"])  # noqa: S108 - must not be shown.
async def test_folders_that_the_sandbox_needs_cannot_be_covered(
    path: str, repository: Path, socket: Path | None
) -> None:
    with pytest.raises(SandboxUnavailable, match="cannot show"):
        await run_program(
            shell("true", repository, writable=(repository, Path(path))), seconds=60, max_output=100, service=socket
        )


async def test_a_missing_folder_is_named(repository: Path, tmp_path: Path, socket: Path | None) -> None:
    with pytest.raises(SandboxUnavailable, match=r"/none does not exist"):
        await run_program(
            shell("true", repository, writable=(tmp_path / "none",)), seconds=60, max_output=100, service=socket
        )
    with pytest.raises(SandboxUnavailable, match="is not in the sandbox"):
        await run_program(shell("true", tmp_path, writable=(repository,)), seconds=60, max_output=100, service=socket)


async def test_a_program_that_is_missing_ends_with_the_reason(repository: Path, socket: Path | None) -> None:
    missing = replace(shell("", repository), argv=("/opt/none/agent",))
    async with open_program(missing, socket) as program:
        assert (await program.wait()).code == 127
        assert "/opt/none/agent" in program.stderr_tail()


async def test_a_program_runs_to_its_end(repository: Path, socket: Path | None) -> None:
    ended = await run_program(
        shell("cat; echo error >&2; exit 3", repository), seconds=60, max_output=1000, service=socket, stdin=b"given\n"
    )
    assert (ended.output, ended.exit_code, ended.stopped_for) == ("given\nerror\n", 3, "")
    late = await run_program(shell(f"sleep {NAP}44", repository), seconds=0.5, max_output=1000, service=socket)
    assert late.stopped_for == "it took longer than 0.5 seconds"
    assert not processes_with(f"{NAP}44")
    endless = await run_program(shell("yes", repository), seconds=60, max_output=1000, service=socket)
    assert endless.stopped_for == "it wrote more than 10 MB"
    assert len(endless.output) < 1100


async def test_memory_and_processes_are_limited(repository: Path, socket: Path | None) -> None:
    hungry = "import time; held = b'x' * 10**8; time.sleep(600)"
    script = f'for each in 1 2 3 4 5 6; do python3 -c "{hungry}" & done; wait'
    ended = await run_program(shell(script, repository), seconds=60, max_output=1000, service=socket)
    assert ended.stopped_for == "more than 512 MB of memory"
    many = "import threading, time; [threading.Thread(target=time.sleep, args=(600,)).start() for _ in range(100)]"
    ended = await run_program(shell(f'python3 -c "{many}"', repository), seconds=60, max_output=1000, service=socket)
    assert ended.stopped_for == "more than 64 processes and threads"


async def test_files_in_memory_count_as_memory(repository: Path, socket: Path | None) -> None:
    fill = "head -c 400000000 /dev/zero > /tmp/one; head -c 200000000 /dev/zero > /dev/shm/two; head -c 200000000 "
    script = f"{fill} /dev/zero > $HOME/three; sleep 600"
    ended = await run_program(shell(script, repository), seconds=60, max_output=1000, service=socket)
    assert ended.stopped_for == "more than 512 MB of memory"


async def test_large_files_can_be_written(repository: Path, socket: Path | None) -> None:
    """A limit would kill git in the middle of packing a large repository."""
    script = "truncate -s 3G large && stat -c %s large; rm large"
    ended = await run_program(shell(script, repository), seconds=60, max_output=1000, service=socket)
    assert ended.output == f"{3 * 1024**3}\n"


async def test_a_program_knows_its_user(repository: Path, socket: Path | None) -> None:
    """Node's `os.userInfo` and git fail without an entry."""
    ended = await run_program(
        shell("id -un; id -gn; echo ~agent", repository), seconds=60, max_output=1000, service=socket
    )
    assert ended.output.split() == ["agent", "agent", AGENT_HOME]


async def test_programs_leave_no_descriptors_and_no_zombies(repository: Path, socket: Path | None) -> None:
    def descriptors() -> list[str]:
        return sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names suffice.

    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    # Other tests of this process may have left a child that has nothing to do with us.
    others = children()
    await run_program(shell("true", repository), seconds=60, max_output=100, service=socket)
    before = descriptors()
    for number in range(25):
        async with open_program(shell("echo started; cat", repository), socket) as program:
            assert await program.stdout.readline() == b"started\n"
            if number % 2:
                await program.end()
        await run_program(shell("echo x; (sleep 60 &)", repository), seconds=60, max_output=100, service=socket)
    await until(lambda: descriptors() == before, within=10.0)
    assert children() <= others, "not even a zombie is left"


async def test_a_program_inherits_none_of_our_descriptors(
    repository: Path, tmp_path: Path, socket: Path | None
) -> None:
    with (tmp_path / "secret").open("w") as held:
        os.set_inheritable(held.fileno(), True)  # noqa: FBT003 - it takes no name.
        script = "ls -l /proc/self/fd /proc/1/fd"
        ended = await run_program(shell(script, repository), seconds=60, max_output=4000, service=socket)
    assert "secret" not in ended.output
    own, first = ended.output.split("/proc/self/fd")
    assert "memfd" not in own + first


async def test_a_cancelled_start_leaves_nothing(repository: Path, socket: Path | None) -> None:
    for step in range(12):
        async with asyncio.TaskGroup() as group:
            running = run_program(shell(f"sleep {NAP}45", repository), seconds=60, max_output=100, service=socket)
            task = group.create_task(running, name="program")
            await asyncio.sleep(step * 0.005)  # Another moment of the start each time.
            task.cancel()
    assert not processes_with(f"{NAP}45")


async def test_a_replaced_folder_is_not_shown(repository: Path, tmp_path: Path, socket: Path | None) -> None:
    (repository / ".git").symlink_to(tmp_path)
    program = shell("true", repository, writable=(repository, repository / ".git"))
    with pytest.raises(SandboxUnavailable, match="is a link"):
        await run_program(program, seconds=60, max_output=100, service=socket)


async def test_no_text_can_add_options_to_the_sandbox(repository: Path, socket: Path | None) -> None:
    (repository / "root").mkdir()
    options = f"x\0--bind\0/\0{repository}/root"
    for changes in ({"env": {"A": options}}, {"env": {"A\0--bind": "x"}}, {"path": (options,)}):
        with pytest.raises(SandboxUnavailable, match="zero byte"):
            await run_program(shell("ls", repository, **changes), seconds=60, max_output=1000, service=socket)
    with pytest.raises(SandboxUnavailable, match="zero byte"):
        await run_program(shell(options, repository), seconds=60, max_output=1000, service=socket)
    with pytest.raises(SandboxUnavailable, match="not valid Unicode"):
        await run_program(shell("echo \ud800", repository), seconds=60, max_output=1000, service=socket)


async def test_paths_through_links_work_inside(tmp_path: Path, socket: Path | None) -> None:
    """The state directory of a systemd service is a link, and so is the current version of many programs."""
    (tmp_path / "real" / "repository").mkdir(parents=True)
    (tmp_path / "version-2" / "bin").mkdir(parents=True)
    (tmp_path / "version-2" / "bin" / "tool").write_text("tool")
    (tmp_path / "state").symlink_to(tmp_path / "real")
    (tmp_path / "current").symlink_to("version-2")
    (tmp_path / "other").symlink_to(tmp_path / "version-2")
    repository = tmp_path / "state" / "repository"
    shown = (tmp_path / "current", tmp_path / "other" / "bin", Path("/bin/sh"), tmp_path / "version-2" / "bin")
    script = f"pwd -P; cat {tmp_path}/current/bin/tool {tmp_path}/other/bin/tool; touch {repository}/new"
    ended = await run_program(shell(script, repository, readable=shown), seconds=60, max_output=1000, service=socket)
    assert ended.output == f"{tmp_path}/real/repository\ntooltool"
    assert (repository / "new").exists()

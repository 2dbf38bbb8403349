"""Tests that try to break out of the sandbox. Commands run as a model would run them, through the toolbox."""

import asyncio
import errno
import os
import resource
import shutil
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec import structs

from config import ShellSettings
from gateway.agent.toolbox.shell import make_shell
from gateway.agent.tools import Toolbox, ToolContext
from gateway.conversation import ToolCall, ToolOutcome
from tests.polling import until
from tests.sandbox.harness import NAP, SANDBOX_COMMAND, needs_sandbox, processes_with


async def run(command: str, context: ToolContext, **changes: object) -> ToolOutcome:
    settings = ShellSettings.model_validate({"enabled": True, "memory_mb": 256, "max_processes": 32, **changes})
    async with asyncio.timeout(120):
        call = ToolCall(id="call_1", name="shell", input={"command": command})
        return await Toolbox([make_shell(settings)]).run(call, context)


@needs_sandbox
async def test_a_command_works_in_the_workspace(context: ToolContext) -> None:
    outcome = await run("pwd; echo made > file; cat file | tr a-z A-Z; exit 3", context)
    assert (outcome.output, outcome.is_error) == ("/workspace\nMADE\n[Exit code 3.]", False)
    assert (context.workspace / "file").read_text() == "made\n"
    assert (await run("true", context)).output == "[Done, without any output.]"


@needs_sandbox
async def test_only_the_workspace_can_be_read_and_written(context: ToolContext, tmp_path: Path) -> None:
    secret = tmp_path / "http.token"
    secret.write_text("the-secret-token")
    (context.workspace / "link").symlink_to(secret)
    ways = f"""
        cat link {secret} ../http.token /workspace/../http.token /proc/1/root{secret} /proc/1/cwd/../http.token
        cat /etc/shadow /etc/passwd /root/.profile; ls /root /home /var /run /srv /sys
        for place in / /usr /etc /bin /dev /proc; do touch $place/x && echo WRITTEN; done
        ln -s {secret} again; cat again; ln {secret} hard; mount -o remount,rw / && echo MOUNTED
    """
    outcome = await run(ways, context)
    assert "the-secret-token" not in outcome.output
    assert "WRITTEN" not in outcome.output
    assert "MOUNTED" not in outcome.output
    assert "root:" not in outcome.output
    assert secret.read_text() == "the-secret-token"


@needs_sandbox
async def test_not_even_root_can_change_kernel_settings(context: ToolContext) -> None:
    outcome = await run(
        "test -w /proc/sys/kernel/core_pattern && echo WRITABLE; unshare -U true && echo NESTED", context
    )
    assert "WRITABLE" not in outcome.output
    assert "NESTED" not in outcome.output or "--disable-userns" not in SANDBOX_COMMAND


@needs_sandbox
async def test_our_environment_and_processes_are_invisible(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-in-the-environment")
    outcome = await run("env; cat /proc/*/environ /proc/self/environ; echo; ls -d /proc/[0-9]* | wc -l", context)
    assert "canary-in-the-environment" not in outcome.output
    assert int(outcome.output.splitlines()[-1]) < 10


@needs_sandbox
async def test_network_works_only_if_it_is_allowed(context: ToolContext) -> None:
    served = asyncio.Event()

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        ask = f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port} && echo CONNECTED'; wc -l < /proc/net/dev"
        alone = await run(ask, context)
        assert "CONNECTED" not in alone.output
        assert not served.is_set()
        assert "CONNECTED" in (await run(ask, context, network=True)).output


@needs_sandbox
@pytest.mark.parametrize(
    "command",
    [
        "sleep $N",
        "trap '' TERM INT HUP; sleep $N",
        "exec >&- 2>&-; sleep $N",
        "(setsid sleep $N &); setsid nohup sleep $N & sleep $N",
    ],
    ids=["hanging", "deaf", "mute", "scattered"],
)
async def test_a_command_and_its_processes_end_at_the_deadline(command: str, context: ToolContext) -> None:
    number = str(uuid4().int % 10**9)
    outcome = await run(command.replace("$N", number), context, timeout=1.0)
    assert outcome.is_error
    assert "[The command was stopped: it took longer than 1 seconds.]" in outcome.output
    assert not processes_with(number)


@needs_sandbox
async def test_background_processes_end_with_their_command(context: ToolContext) -> None:
    outcome = await run(f"(setsid sleep {NAP}12 &); sleep {NAP}12 & echo left", context)
    assert (outcome.output, outcome.is_error) == ("left", False)
    assert not processes_with(f"{NAP}12")


@needs_sandbox
async def test_stopping_the_turn_ends_the_command(context: ToolContext) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        turn = group.create_task(run(f"echo > begun; sleep {NAP}13", context), name="turn")
        await until((context.workspace / "begun").exists)
        turn.cancel()
    assert turn.cancelled()
    assert not processes_with(f"{NAP}13")


@needs_sandbox
@pytest.mark.parametrize("command", ["yes", "head -c 1000000000 /dev/zero | tr '\\0' x"])
async def test_a_command_with_endless_output_is_stopped(command: str, context: ToolContext) -> None:
    outcome = await run(command, context)
    assert outcome.is_error
    assert outcome.output.endswith("[The command was stopped: it wrote more than 10 MB.]")
    assert len(outcome.output) < 31_000


@needs_sandbox
async def test_long_output_keeps_its_start_and_end(context: ToolContext) -> None:
    output = (await run("seq 1 20000", context, max_output_chars=1000)).output
    assert output.startswith("1\n2\n3\n")
    assert output.endswith("\n19999\n20000")
    assert "bytes left out" in output


@needs_sandbox
async def test_a_fork_bomb_is_stopped(context: ToolContext) -> None:
    """The kernel refuses the 33rd process. It does not limit root, so we count the processes as well."""
    outcome = await run(f"for each in $(seq 300); do sleep {NAP}14 & done; wait", context, timeout=20.0)
    assert "fork" in outcome.output or "more than 32 processes" in outcome.output
    assert not processes_with(f"{NAP}14")


@needs_sandbox
async def test_memory_is_limited_per_process_and_in_total(context: ToolContext) -> None:
    hungry = "import time; held = b'x' * {size}; print('HELD', flush=True); time.sleep(60)"
    one = f'python3 -c "{hungry.format(size=10**9)}"'
    assert "HELD" not in (await run(one, context)).output
    many = f'for each in 1 2 3 4 5; do python3 -c "{hungry.format(size=10**8)}" & done; wait'
    assert "more than 256 MB of memory" in (await run(many, context)).output


@needs_sandbox
async def test_the_temporary_folder_is_empty_and_limited(context: ToolContext) -> None:
    outcome = await run("ls -A /tmp /dev/shm; head -c 400000000 /dev/zero > /tmp/big || echo FULL", context)
    assert "FULL" in outcome.output


@needs_sandbox
@pytest.mark.parametrize("command", ["$(echo hi", "\n", "'", "--help", "echo \u2028 é", "; ; ;", "x" * 100_000])
async def test_odd_commands_reach_the_shell_unchanged(command: str, context: ToolContext) -> None:
    """A command is always one argument, so no part of it can be an option of the sandbox."""
    outcome = await run(command, context)
    assert "failed unexpectedly" not in outcome.output
    assert "Usage" not in outcome.output


@pytest.fixture
def no_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    if prlimit := shutil.which("prlimit"):
        (tools / "prlimit").symlink_to(prlimit)
    monkeypatch.setenv("PATH", str(tools))


@pytest.mark.usefixtures("no_sandbox")
async def test_no_command_runs_without_a_sandbox(context: ToolContext) -> None:
    outcome = await run("echo > ran", context)
    assert outcome.is_error
    assert "bubblewrap is not installed" in outcome.output
    assert not (context.workspace / "ran").exists()


@pytest.mark.usefixtures("no_sandbox")
async def test_an_allowed_unsandboxed_command_has_limits_and_no_secrets(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-in-the-environment")
    command = f"env; pwd; (setsid sleep {NAP}15 &); sleep {NAP}15 & setsid nohup sleep {NAP}15 > /dev/null & echo said"
    outcome = await run(command, context, allow_unsandboxed=True)
    assert "canary-in-the-environment" not in outcome.output
    assert f"{context.workspace}\n" in outcome.output
    assert outcome.output.endswith("said")
    assert not processes_with(f"{NAP}15")


@pytest.fixture
def with_attachment(context: ToolContext, tmp_path: Path) -> ToolContext:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "report.txt").write_text("attached")
    return structs.replace(context, attachments=tmp_path / "files")


@needs_sandbox
async def test_attachments_can_be_read_and_not_changed(with_attachment: ToolContext, tmp_path: Path) -> None:
    command = (
        "cat /attachments/report.txt; echo; echo x > /attachments/new; rm /attachments/report.txt; ls /attachments"
    )
    outcome = await run(command, with_attachment)
    assert outcome.output.startswith("attached\n")
    assert outcome.output.endswith("report.txt")
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["report.txt"]


@needs_sandbox
async def test_a_session_without_attachments_has_no_folder_for_them(context: ToolContext, tmp_path: Path) -> None:
    outcome = await run("ls /attachments", structs.replace(context, attachments=tmp_path / "none"))
    assert "No such file" in outcome.output


@pytest.mark.usefixtures("no_sandbox")
async def test_an_unsandboxed_command_is_told_where_the_attachments_are(with_attachment: ToolContext) -> None:
    outcome = await run("cat /attachments/report.txt", with_attachment, allow_unsandboxed=True)
    assert "are in the folder $ATTACHMENTS.]" in outcome.output
    outcome = await run('cat "$ATTACHMENTS"/report.txt', with_attachment, allow_unsandboxed=True)
    assert outcome.output == "attached"


@pytest.mark.usefixtures("no_sandbox")
async def test_other_processes_of_the_user_do_not_count_without_a_sandbox(context: ToolContext) -> None:
    outcome = await run("grep processes /proc/self/limits", context, allow_unsandboxed=True, max_processes=4)
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    assert outcome.output.split()[2] == ("unlimited" if soft == resource.RLIM_INFINITY else str(soft))


async def test_a_command_inherits_none_of_our_descriptors(context: ToolContext, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as held:
        os.set_inheritable(held.fileno(), True)  # noqa: FBT003 - it takes no name.
        outcome = await run("ls -l /proc/self/fd", context, allow_unsandboxed=True)
    assert "secret" not in outcome.output


def errors_of(*calls: tuple[int, ...]) -> str:
    """Return a Perl command that prints the error number of each system call."""
    parts = [f"syscall({', '.join(map(str, call))}); print $!+0, qq( ); $! = 0;" for call in calls]
    return f"perl -e '$! = 0; {' '.join(parts)}'"


@needs_sandbox
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86_64")
async def test_the_kernel_refuses_these_calls_to_a_command(context: ToolContext) -> None:
    refused = {
        "add_key": (248, 0, 0, 0, 0, 0),
        "request_key": (249, 0, 0, 0, 0),
        "keyctl": (250, 0, -3, 1),
        "ptrace": (101, 0, 0, 0, 0),
        "process_vm_readv": (310, 1, 0, 0, 0, 0, 0),
        "mount": (165, 0, 0, 0, 0, 0),
        "fsopen": (430, 0, 0),
        "bpf": (321, 0, 0, 0),
        "userfaultfd": (323, 0),
        "unshare of a user namespace": (272, 0x10000000),
    }
    outcome = await run(errors_of(*refused.values()), context)
    assert outcome.output.split() == [str(errno.EPERM)] * len(refused)
    no_family = [(41, 40, 1, 0), (41, 38, 5, 0)]  # AF_VSOCK and AF_ALG.
    outcome = await run(errors_of(*no_family), context)
    assert outcome.output.split() == [str(errno.EAFNOSUPPORT)] * len(no_family)
    missing = [(425, 1, 0), (435, 0, 0), (0x40000000 + 39,), (471,)]
    outcome = await run(errors_of(*missing), context)
    assert outcome.output.split() == [str(errno.ENOSYS)] * len(missing)


@needs_sandbox
async def test_ordinary_programs_run_with_the_filter(context: ToolContext) -> None:
    command = "grep ^Seccomp: /proc/self/status; perl -e '$| = 1; print fork ? 1 : 2; wait' | cat"
    outcome = await run(command, context)
    assert outcome.output.startswith("Seccomp:\t2\n")
    assert sorted(outcome.output.splitlines()[1]) == ["1", "2"]


@needs_sandbox
async def test_a_command_sees_no_keys(context: ToolContext) -> None:
    outcome = await run("cat /proc/keys /proc/key-users 2>/dev/null; echo end", context)
    assert outcome.output == "end"

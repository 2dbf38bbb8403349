"""A long-lived program in a sandbox that this process has made. No process of the sandbox outlives it."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gateway.aio import finish_before_cancel
from gateway.sandbox.bubblewrap import (
    SandboxLimits,
    SandboxUnavailable,
    base_argv,
    find_prlimit,
    first_process,
    memory_reason,
    open_filter,
    read_usage,
    with_own_keyring,
)
from gateway.sandbox.layout import Layout, SandboxedProgram, environment, identity, lay_out, user_files

READY = b"ready\n"
GO = b"go\n"
_GATE = 'echo ready && read -r go && exec "$@"'
"""Runs inside, before the program. It reads single bytes, so it takes nothing that is meant for the program.

1. bubblewrap ends with its parent, but only after it has set up the sandbox. A parent that is killed before leaves it.
2. The gate then finds the end of its standard input instead of the line, and ends.
3. The line `ready` says that the sandbox was set up. Without it, the output has the complaint of bubblewrap.
"""

_BUBBLEWRAP = "bwrap\n"
"""The name of its processes in /proc, which every user may read."""
_WATCH_INTERVAL = 1.0
_SETUP_INTERVAL = 0.002
_SETUP_TIMEOUT = 20.0
_END_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """How a program ended. `stopped_for` names the limit that it exceeded, if it did."""

    code: int
    stopped_for: str = ""


class Stdio(NamedTuple):
    """Descriptors that become the standard streams of the program."""

    stdin: int
    stdout: int
    stderr: int


@asynccontextmanager
async def start_process(program: SandboxedProgram, stdio: Stdio) -> AsyncIterator["ProgramProcess"]:
    """Start the sandbox. The gate in it waits for the line `GO`. Leaving kills all of its processes.

    Raises `SandboxUnavailable` if no sandbox can be made here, or not with these folders.
    """
    bwrap, inside, layout = await asyncio.to_thread(_prepare, program)
    with ExitStack() as stack:
        filter_options, descriptors = stack.enter_context(open_filter())
        files = {path: _memory_file(stack, data) for path, data in user_files().items()}
        arguments = _memory_file(stack, _encode_options(program, layout, files))
        process = await asyncio.create_subprocess_exec(
            *with_own_keyring([*bwrap, *filter_options, "--args", str(arguments), "--", *inside]),
            stdin=stdio.stdin,
            stdout=stdio.stdout,
            stderr=stdio.stderr,
            env={},
            cwd="/",
            start_new_session=True,
            pass_fds=(arguments, *files.values(), *descriptors),
        )
    running = ProgramProcess(process, program.limits, layout)
    try:
        await running.check_layout()
        yield running
    finally:
        running.kill()
        await finish_before_cancel(running.wait(), grace=_END_TIMEOUT)


def end_orphans() -> None:
    """Kill what a killed gateway has left: children of bubblewrap whose parent is gone. Blocks: use a thread.

    bubblewrap can be killed between its own start and its message to its child, which then waits for ever and has run
    nothing. The first process of a running sandbox always has bubblewrap as its parent.
    """
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It has ended, or belongs to another user.
            if (process / "comm").read_text() != _BUBBLEWRAP or _GATE not in (process / "cmdline").read_text():
                continue
            status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
            is_first = status["NSpid"].split()[-1] == "1"
            if is_first and Path("/proc", status["PPid"], "comm").read_text() != _BUBBLEWRAP:
                os.kill(int(process.name), signal.SIGKILL)


def _prepare(program: SandboxedProgram) -> tuple[list[str], list[str], Layout]:
    """Return the command line of bubblewrap without the options of the program, that of the program, and its layout."""
    try:
        layout = lay_out(program)
    except OSError as error:  # A folder that cannot be read, or that is being replaced.
        raise SandboxUnavailable(f"The folders of the program cannot be used: {error}.") from error
    nice = shutil.which("nice")
    # The kernel does not limit root, so the processes are counted as well. It stops a fork bomb between two counts.
    limits = ["--core=0", f"--nproc={2 * program.limits.processes}"]
    inside = [*([nice, "-n", "10"] if nice else []), find_prlimit(), *limits, "--"]
    inside += ["/bin/sh", "-c", _GATE, "sh", *program.argv]
    return base_argv(network=program.network), inside, layout


def _encode_options(program: SandboxedProgram, layout: Layout, files: Mapping[str, int]) -> bytes:
    """Return options in the form in which bubblewrap reads them from a file, so that no command line has the keys."""
    options = [*layout.options]
    for path, descriptor in files.items():
        options += ["--perms", "0444", "--ro-bind-data", str(descriptor), path]
    options += ["--remount-ro", "/", "--clearenv"]
    for name, value in environment(program).items():
        options += ["--setenv", name, value]
    return b"".join(os.fsencode(word) + b"\0" for word in options)


def _memory_file(stack: ExitStack, data: bytes) -> int:
    """Return the descriptor of a file that a program can read once. `stack` closes it."""
    file = stack.enter_context(os.fdopen(os.memfd_create("gatehouse"), "wb+", buffering=0))
    file.write(data)
    file.seek(0)
    return file.fileno()


class ProgramProcess:
    def __init__(self, process: asyncio.subprocess.Process, limits: SandboxLimits, layout: Layout) -> None:
        self.pid = process.pid
        self._process = process
        self._limits = limits
        self._layout = layout
        self._stopped_for = ""
        self._is_killed = False
        self._first: int | None = None
        """The first process inside, and a descriptor of it, while it runs."""
        self._descriptor = -1
        # A task group would wrap the errors of the block that uses the program. `start_process` waits for the task.
        self._supervision = asyncio.get_running_loop().create_task(self._supervise(), name="sandbox:program")

    async def check_layout(self) -> None:
        """Return once the sandbox is set up, or has failed. Raises `SandboxUnavailable` if it shows other folders.

        An agent that still runs could replace a folder in its repository by a link, just before bubblewrap opens it.
        The gate is still closed.
        """
        deadline = asyncio.get_running_loop().time() + _SETUP_TIMEOUT
        while not self._supervision.done() and not self._is_set_up():
            if asyncio.get_running_loop().time() > deadline:
                raise SandboxUnavailable(f"The sandbox was not set up after {_SETUP_TIMEOUT:g} seconds.")
            await asyncio.sleep(_SETUP_INTERVAL)
        for path, expected in self._layout.shown.items():
            with suppress(FileNotFoundError):  # The sandbox has ended.
                if self._first is not None and identity(f"/proc/{self._first}/root{path}") != expected:
                    raise SandboxUnavailable(f"{path} was replaced while the program was started. Try again.")

    def _is_set_up(self) -> bool:
        with suppress(OSError):  # bubblewrap works on it.
            return self._first is not None and read_usage(self._first) is not None
        return False

    async def wait(self) -> ProgramExit:
        """Return when no process of the sandbox is left."""
        await asyncio.wait({self._supervision})
        code = self._process.returncode
        return ProgramExit(1 if code is None else code, self._stopped_for)

    async def terminate(self) -> None:
        """Ask all processes inside to end."""

        def signal_all(first: int) -> None:
            for process in _descendants(first):
                with suppress(OSError):
                    os.kill(process, signal.SIGTERM)

        if self._first is not None:
            await asyncio.to_thread(signal_all, self._first)

    def kill(self) -> None:
        """Kill the first process inside. The kernel then kills all others, and bubblewrap ends after them."""
        self._is_killed = True  # For a sandbox that is still starting.
        if self._first is not None:
            with suppress(OSError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    async def _supervise(self) -> None:
        # bubblewrap could tell by `--json-status-fd`. But if we were killed just before that, writing it would kill
        # bubblewrap as well, and its child would wait for it forever.
        while self._process.returncode is None:
            with suppress(OSError, IndexError):
                await self._watch(first_process(self.pid))
                break
            await asyncio.sleep(_SETUP_INTERVAL)
        await self._process.wait()

    async def _watch(self, first: int) -> None:
        """Return when all processes of the sandbox have ended. The kernel ends its first process as the last one."""
        loop = asyncio.get_running_loop()
        gone = loop.create_future()

        def resolve() -> None:
            loop.remove_reader(descriptor)
            gone.set_result(None)

        descriptor = os.pidfd_open(first)
        try:
            self._first, self._descriptor = first, descriptor
            loop.add_reader(descriptor, resolve)
            if self._is_killed:
                self.kill()
            while not gone.done():
                await asyncio.wait({gone}, timeout=_WATCH_INTERVAL)
                if not gone.done() and (reason := await asyncio.to_thread(self._exceeded, first)):
                    self._stopped_for = self._stopped_for or reason
                    self.kill()
            with suppress(ChildProcessError):  # It is ours only where we are the first process of a container.
                os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222 - it does not wait.
        finally:
            self.kill()  # Cancelled.
            self._first = None
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def _exceeded(self, first: int) -> str:
        with suppress(OSError):  # It has ended.
            usage = read_usage(first)
            if usage and usage.threads > self._limits.processes:
                return f"more than {self._limits.processes} processes and threads"
            files = [os.statvfs(f"/proc/{first}/root{path}") for path in self._layout.in_memory]
            used = sum((each.f_blocks - each.f_bfree) * each.f_frsize for each in files)
            if usage and usage.memory_bytes + used > self._limits.memory_bytes:
                return memory_reason(self._limits)
        return ""


def _descendants(first: int) -> list[int]:
    """Return the processes that `first` and its threads have started, and theirs. Orphans belong to `first`."""
    found, at = [first], 0
    while at < len(found):
        with suppress(OSError):
            for thread in Path(f"/proc/{found[at]}/task").iterdir():
                with suppress(OSError):
                    found += [int(word) for word in (thread / "children").read_text().split()]
        at += 1
    return found[1:]

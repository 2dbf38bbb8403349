"""Starts `gatehouse` processes without the second that its imports take: a fork server has them imported already.

A few tests start the real command. All other tests only need a separate process.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec

from gateway.cli import COMMANDS
from tests.forks.server import MAX_REQUEST_BYTES, ForkRequest
from tests.umask import umask

ROOT = Path(__file__).parents[2]
_servers = ExitStack()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The function to run, and the modules that the fork server imports for it, in this order."""

    entry: str
    modules: tuple[str, ...]
    is_measured: bool = True
    """Whether its coverage is measured, if coverage is on."""


GATEHOUSE = Program(
    entry="gateway.cli:main",
    modules=("gateway.cli", *(target.partition(":")[0] for target, _ in COMMANDS.values()), "gateway.cli.serve"),
)


@cache
def fork_server(program: Program) -> socket.socket:
    """Start a fork server for `program`. Returns the socket for requests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks.server", str(theirs.fileno()), *program.modules],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if program.is_measured or name[:3] != "COV"},
            stdin=subprocess.PIPE,  # Python sets up its standard streams once, here for pipes, which cannot seek.
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"ready\n", process.stderr.read()
    _servers.enter_context(process)  # Leaving it waits for the end of the process.
    _servers.callback(ours.close)
    return ours


def stop_fork_servers() -> None:
    """Stop all fork servers, so that they write their coverage before it is added up."""
    fork_server.cache_clear()
    _servers.close()


class Started(Protocol):
    """The part of `subprocess.Popen` that the tests use."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: signal.Signals, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Forked:
    """A forked process, with the interface of `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        streams: Sequence[int],
        program: Program = GATEHOUSE,
    ) -> None:
        self.returncode: int | None = None
        self._reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = ForkRequest(entry=program.entry, command=tuple(command), cwd=str(cwd), env=dict(env), umask=umask())
        with theirs:
            socket.send_fds(fork_server(program), [msgspec.json.encode(request)], [*streams, theirs.fileno()])
        self.pid = int(self._reports.recv(MAX_REQUEST_BYTES))

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._reports.settimeout(timeout)
            self.returncode = int(self._reports.recv(MAX_REQUEST_BYTES))
            self._reports.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except BlockingIOError:
            return None

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def forked(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a command and return its output, as `subprocess.run` does."""
    stdin_read, stdin_write = os.pipe()
    stdout_read, stdout_write = os.pipe()
    stderr_read, stderr_write = os.pipe()
    theirs = (stdin_read, stdout_write, stderr_write)
    process = Forked(command, cwd=cwd, env=env, streams=theirs)
    for stream in theirs:
        os.close(stream)
    with ThreadPoolExecutor(max_workers=2) as pool:
        outputs = [pool.submit(_read, stream) for stream in (stdout_read, stderr_read)]
        with suppress(BrokenPipeError), open(stdin_write, "w") as file:  # noqa: PTH123 - a pipe has no path
            file.write(stdin)
        try:
            code = process.wait(timeout)
        except TimeoutError:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, code, outputs[0].result(), outputs[1].result())


def _read(stream: int) -> str:
    with open(stream) as file:
        return file.read()

"""Processes of `gatehouse` without the second of work that its imports are: forked from one that has them already.

A few tests start the command itself, as a shell does; all the others need a process of their own, not its imports.
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

from gateway.cli import COMMANDS
from tests.forks.order import SIZE, Order
from tests.umask import umask

__all__ = ["GATEHOUSE", "Forked", "Program", "Started", "end_parents", "forked"]

ROOT = Path(__file__).parents[2]
_leaving = ExitStack()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is run, and what is imported for it before it is forked; the first module is the very first."""

    entry: str
    modules: tuple[str, ...]
    is_measured: bool = True
    """Whether it counts for the coverage, where that is asked for."""


GATEHOUSE = Program(
    entry="gateway.cli:main",
    modules=("gateway.cli", *(target.partition(":")[0] for target, _ in COMMANDS.values()), "gateway.cli.serve"),
)


@cache
def parent(program: Program) -> socket.socket:
    """Start a parent for `program`; returns the socket on which it takes orders."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks.parent", str(theirs.fileno()), *program.modules],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if program.is_measured or name[:3] != "COV"},
            stdin=subprocess.PIPE,  # Streams are made for what they begin with: here, for what cannot seek.
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"ready\n", process.stderr.read()
    _leaving.callback(_leave, process, ours)
    return ours


def _leave(process: "subprocess.Popen[bytes]", orders: socket.socket) -> None:
    orders.close()
    with process:
        pass


def end_parents() -> None:
    """End them all, so that they have told their coverage before it is added up."""
    parent.cache_clear()
    _leaving.close()


class Started(Protocol):
    """A process, as far as the tests look after it."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: signal.Signals, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Forked:
    """One process: to those who have started it, what `subprocess.Popen` would be."""

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
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = Order(entry=program.entry, command=tuple(command), cwd=str(cwd), env=dict(env), umask=umask())
        with theirs:
            socket.send_fds(parent(program), [order.encode()], [*streams, theirs.fileno()])
        self.pid = int(self._line.recv(SIZE))

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._line.settimeout(timeout)
            self.returncode = int(self._line.recv(SIZE))
            self._line.close()
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
    """Run one command to its end, as `subprocess.run` would."""
    (reading, feeding), (out, telling), (errors, complaining) = os.pipe(), os.pipe(), os.pipe()
    process = Forked(command, cwd=cwd, env=env, streams=(reading, telling, complaining))
    for theirs in (reading, telling, complaining):
        os.close(theirs)
    with ThreadPoolExecutor(max_workers=2) as pool:
        told = [pool.submit(_read, stream) for stream in (out, errors)]
        _feed(feeding, stdin)
        try:
            code = process.wait(timeout)
        except TimeoutError:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, code, told[0].result(), told[1].result())


def _read(stream: int) -> str:
    with open(stream) as file:
        return file.read()


def _feed(stream: int, text: str) -> None:
    with suppress(BrokenPipeError), open(stream, "w") as file:
        file.write(text)

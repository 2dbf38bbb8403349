"""A fork server: a process that has all modules imported and forks others, and the start of a forked process.

Run as `python -m tests.forks.server FD MODULE...`. FD is a socket for `ForkRequest`s. With each request come the
standard streams of the new process and a socket, on which the server reports its pid and later its exit status. The
server has no threads and no event loop, so it can fork safely. It imports no module of Gatehouse before the first
MODULE, which may have to come first.
"""

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
from dataclasses import dataclass

import msgspec

MAX_REQUEST_BYTES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """`entry` is the `module:function` to run. `command` becomes `sys.argv`."""

    entry: str
    command: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    umask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    pid: int
    reports: socket.socket

    def report_end(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        with contextlib.suppress(BrokenPipeError):  # The test may have ended.
            self.reports.send(str(os.waitstatus_to_exitcode(status)).encode())
        self.reports.close()


def serve(requests: socket.socket) -> ForkRequest | None:
    """Fork processes until the socket is closed, then kill them. In a forked process, return its request."""
    children: dict[int, Child] = {}
    while True:
        for ready in select.select([requests.fileno(), *children], [], [])[0]:
            if ready in children:
                children.pop(ready).report_end()
                os.close(ready)
                continue
            text, streams, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 4)
            if not text:
                for child in children.values():
                    os.kill(child.pid, signal.SIGKILL)
                return None
            reports = socket.socket(fileno=streams.pop())
            if pid := os.fork():
                reports.send(str(pid).encode())
                children[os.pidfd_open(pid)] = Child(pid=pid, reports=reports)
                for stream in streams:
                    os.close(stream)
                continue
            reports.close()
            requests.close()
            for handle, child in children.items():
                os.close(handle)
                child.reports.close()
            for standard, stream in enumerate(streams):
                os.dup2(stream, standard)
                os.close(stream)
            return msgspec.json.decode(text, type=ForkRequest)


def run_request(request: ForkRequest) -> int:
    """Run the function of a request in its folder and environment. Returns the exit status."""
    os.chdir(request.cwd)
    os.umask(request.umask)
    os.environ.clear()
    os.environ.update(request.env)
    sys.argv = list(request.command)
    module, _, function = request.entry.partition(":")
    status: int = getattr(sys.modules[module], function)()
    return status


def main() -> int:
    requests = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    importlib.import_module("tests.forks.warm_up").warm_up()
    gc.freeze()  # A collection in a child would otherwise touch, and so copy, the memory of all imported modules.
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    request = serve(requests)
    return 0 if request is None else run_request(request)


if __name__ == "__main__":
    sys.exit(main())

"""The process that others are forked from, with everything imported already; and what is forked.

Run as `python -m tests.forks.parent FD MODULE...`: FD is a socket on which orders come, each with the standard streams
of the process to be and a line on which its pid is told, and in the end its status. It has no threads and no event
loop, so that forking it is safe. It imports nothing of ours before the first MODULE, which may have to be the first.
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

from tests.forks.order import SIZE, Order

__all__ = ["main"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    pid: int
    line: socket.socket

    def tell_end(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        with contextlib.suppress(BrokenPipeError):  # Nobody may want to know any more.
            self.line.send(str(os.waitstatus_to_exitcode(status)).encode())
        self.line.close()


def serve(orders: socket.socket) -> Order | None:
    """Fork as told until nobody is there to tell; in what was forked, return its order."""
    children: dict[int, Child] = {}
    while True:
        for ready in select.select([orders.fileno(), *children], [], [])[0]:
            if ready in children:
                children.pop(ready).tell_end()
                os.close(ready)
                continue
            text, streams, _, _ = socket.recv_fds(orders, SIZE, 4)
            if not text:
                kill(children)
                return None
            line = socket.socket(fileno=streams.pop())
            if pid := os.fork():
                line.send(str(pid).encode())
                children[os.pidfd_open(pid)] = Child(pid=pid, line=line)
                for stream in streams:
                    os.close(stream)
            else:
                line.close()
                forget(orders, children)
                take(streams)
                return Order.decode(text)


def kill(children: dict[int, Child]) -> None:
    for child in children.values():
        os.kill(child.pid, signal.SIGKILL)


def forget(orders: socket.socket, children: dict[int, Child]) -> None:
    orders.close()
    for handle, child in children.items():
        os.close(handle)
        child.line.close()


def take(streams: list[int]) -> None:
    for standard, stream in enumerate(streams):
        os.dup2(stream, standard)
        os.close(stream)


def become(order: Order) -> int:
    """Be what a shell would have started; returns the status to end with."""
    os.chdir(order.cwd)
    os.umask(order.umask)
    os.environ.clear()
    os.environ.update(order.env)
    sys.argv = list(order.command)
    module, _, function = order.entry.partition(":")
    status: int = getattr(sys.modules[module], function)()
    return status


def main() -> int:
    orders = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    importlib.import_module("tests.forks.rehearsal").rehearse()
    gc.freeze()  # What is imported stays: no child need look through it, and with that copy it.
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    order = serve(orders)
    return 0 if order is None else become(order)


if __name__ == "__main__":
    sys.exit(main())

"""A program that runs an MCP server and ends every process that the server has started, when the server ends.

Run as `python -I -S process_tree.py <pid of the daemon> <program> <argument>...`. It imports nothing of Gatehouse, so
that it stays small. It also ends everything on SIGTERM, which the kernel sends when the daemon is killed.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_TERM_TIMEOUT = 2.0
"""Seconds between SIGTERM and SIGKILL."""
_KILL_TIMEOUT = 5.0
"""Seconds after which processes are left alone that cannot be killed, such as those of another user."""
_INTERVAL = 0.02
_NOT_STARTED = 127


def main(daemon: int, command: list[str]) -> int:
    libc = ctypes.CDLL(None)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != daemon:  # It ended before the kernel knew that we want to be told.
        return _NOT_STARTED
    # Processes whose parent has ended become our children, even if they have left the session of the server.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    server = os.fork()
    if server == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        try:
            os.execv(command[0], command)  # noqa: S606 - the operator's program, with the environment we were given.
        except OSError as failure:
            sys.stderr.write(f"{command[0]}: {failure.strerror}\n")
            os._exit(_NOT_STARTED)
    # Only the server may hold its pipes, so that each side notices when the other one ends.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    while signal.sigwait(_SIGNALS) == signal.SIGCHLD and not _has_ended(server):
        pass
    return _end_all(server)


def _has_ended(server: int) -> bool:
    """Return whether the server has ended, and reap other processes.

    The server itself is not reaped, so that its number keeps naming its process group.
    """
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is not None:
        if ended.si_pid == server:
            return True
        os.waitpid(ended.si_pid, 0)
    return False


def _end_all(server: int) -> int:
    """End the server's process group, then all other processes. Return the exit code of the server."""
    code, is_group_told = 0, False
    started = monotonic()
    while monotonic() < started + _TERM_TIMEOUT + _KILL_TIMEOUT:
        is_over = monotonic() > started + _TERM_TIMEOUT
        if is_over or not is_group_told:
            is_group_told = True
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(server, signal.SIGKILL if is_over else signal.SIGTERM)
            # Killing a process makes its children ours, so that the next round reaches them.
            for child in _children():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL if is_over else signal.SIGTERM)
        try:
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] == server:
                    code = os.waitstatus_to_exitcode(reaped[1])
        except ChildProcessError:  # No process is left.
            break
        signal.sigtimedwait({signal.SIGCHLD}, _INTERVAL)
    return code if code >= 0 else 128 - code


def _children() -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:  # A kernel without CONFIG_PROC_CHILDREN. The process group has to do.
        return []


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))

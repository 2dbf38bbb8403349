"""A program that runs another one with a session keyring of its own: `python -I -S session_keyring.py <program> ...`.

A process inherits the session keyring of its parent, with all keys of the login or the service that started it.
The keyring belongs to a thread, so the daemon cannot change it for its children alone.
"""

import ctypes
import errno
import os
import sys
from typing import NoReturn

_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "armv7l": 311}
_JOIN_SESSION_KEYRING = 1
_NO_KEYRINGS = {errno.ENOSYS, errno.EPERM}
"""The kernel has no keyrings, or a filter forbids them to this process and therefore to its children."""
_FAILED = 126


def main(command: list[str]) -> NoReturn:
    if number := _KEYCTL.get(os.uname().machine):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(number, _JOIN_SESSION_KEYRING, None) < 0 and (code := ctypes.get_errno()) not in _NO_KEYRINGS:
            sys.stderr.write(f"The command was not run, because it can get no keyring: {os.strerror(code)}\n")
            sys.exit(_FAILED)
    os.execv(command[0], command)  # noqa: S606 - the arguments are our own.


if __name__ == "__main__":
    main(sys.argv[1:])

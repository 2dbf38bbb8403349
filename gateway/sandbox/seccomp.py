"""The seccomp filter of the sandbox: which system calls the kernel refuses to commands.

The filter is a program of classic BPF, the form in which bubblewrap takes it. The kernel runs it for each system call,
on a `struct seccomp_data`: https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

import errno
import os
import socket
import struct
from typing import NamedTuple

_INSTRUCTION = struct.Struct("<HBBI")
"""`struct sock_filter`: the operation, how far to jump if it holds and if not, and its operand."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in `struct seccomp_data`. Of the first argument, the lower half on a little-endian machine."""
_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_FAIL = 0x00050000
"""The lower half is the error number."""

_NEW_NAMESPACES = 0x7E020080
"""All `CLONE_NEW...` flags. `clone` reads the bit of CLONE_NEWTIME as part of a signal number, and no signal has it."""

_FIRST_UNKNOWN = 471
"""System calls from this number on are newer than this list. Programs work without them, since kernels lack them."""


class _Numbers(NamedTuple):
    """A system call's numbers. All calls since number 424 have the same number everywhere."""

    x86_64: int
    aarch64: int


_FORBIDDEN = {
    # Keys of the daemon's user.
    "add_key": _Numbers(248, 217),
    "request_key": _Numbers(249, 218),
    "keyctl": _Numbers(250, 219),
    # The memory and the descriptors of other processes.
    "ptrace": _Numbers(101, 117),
    "process_vm_readv": _Numbers(310, 270),
    "process_vm_writev": _Numbers(311, 271),
    "kcmp": _Numbers(312, 272),
    "pidfd_getfd": _Numbers(438, 438),
    "process_madvise": _Numbers(440, 440),
    # Mounts, and files that are named without a path.
    "mount": _Numbers(165, 40),
    "umount2": _Numbers(166, 39),
    "pivot_root": _Numbers(155, 41),
    "chroot": _Numbers(161, 51),
    "open_tree": _Numbers(428, 428),
    "move_mount": _Numbers(429, 429),
    "fsopen": _Numbers(430, 430),
    "fsconfig": _Numbers(431, 431),
    "fsmount": _Numbers(432, 432),
    "fspick": _Numbers(433, 433),
    "mount_setattr": _Numbers(442, 442),
    "open_tree_attr": _Numbers(467, 467),
    "open_by_handle_at": _Numbers(304, 265),
    # Namespaces. `clone` and `unshare` are refused if they make one.
    "setns": _Numbers(308, 268),
    # Parts of the kernel that had many holes, or that only administrators use.
    "bpf": _Numbers(321, 280),
    "perf_event_open": _Numbers(298, 241),
    "userfaultfd": _Numbers(323, 282),
    "init_module": _Numbers(175, 105),
    "finit_module": _Numbers(313, 273),
    "delete_module": _Numbers(176, 106),
    "kexec_load": _Numbers(246, 104),
    "kexec_file_load": _Numbers(320, 294),
    "acct": _Numbers(163, 89),
    "quotactl": _Numbers(179, 60),
    "quotactl_fd": _Numbers(443, 443),
    "swapon": _Numbers(167, 224),
    "swapoff": _Numbers(168, 225),
    "reboot": _Numbers(169, 142),
    "syslog": _Numbers(103, 116),
}
"""These fail with EPERM."""

_MISSING = {
    # A filter cannot read the flags of `clone3`, which are in memory. The C library then uses `clone`.
    "clone3": _Numbers(435, 435),
    "io_uring_setup": _Numbers(425, 425),
    "io_uring_enter": _Numbers(426, 426),
    "io_uring_register": _Numbers(427, 427),
}
"""These fail with ENOSYS, as on an older kernel, so that programs use something else."""

_CLONE = _Numbers(56, 220)
_UNSHARE = _Numbers(272, 97)
_SOCKET = _Numbers(41, 198)
_SOCKETPAIR = _Numbers(53, 199)
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""The sockets that commands may have. Others belong to no network namespace: AF_VSOCK reaches the host of a virtual
machine from a sandbox without a network."""
_AUDIT_ARCHITECTURES = _Numbers(0xC000003E, 0xC00000B7)


def filter_program(machine: str = "") -> bytes | None:
    """Return the filter for this machine, or for `machine`. None if there is no list of system calls for it."""
    machine = machine or os.uname().machine
    if machine not in _Numbers._fields:
        return None
    column = _Numbers._fields.index(machine)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        # A 64-bit program can also make 32-bit calls, which have other numbers.
        *((_EQUAL, 1, 0, _AUDIT_ARCHITECTURES[column]), (_RETURN, 0, 0, _KILL_PROCESS)),
        (_LOAD, 0, 0, _NUMBER),
        # On x86_64, this includes the numbers with the x32 bit, under which each call has a second number.
        *((_AT_LEAST, 0, 1, _FIRST_UNKNOWN), (_RETURN, 0, 0, _FAIL | errno.ENOSYS)),
    ]
    for calls, error in ((_FORBIDDEN, errno.EPERM), (_MISSING, errno.ENOSYS)):
        for numbers in calls.values():
            program += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _FAIL | error)]
    more = len(_FAMILIES)
    program += [
        *((_EQUAL, 1, 0, _SOCKET[column]), (_EQUAL, 0, more + 3, _SOCKETPAIR[column])),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        *((_EQUAL, more - index, 0, family) for index, family in enumerate(_FAMILIES)),
        *((_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)),
    ]
    program += [
        *((_EQUAL, 1, 0, _CLONE[column]), (_EQUAL, 0, 3, _UNSHARE[column])),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        *((_ANY_BIT, 0, 1, _NEW_NAMESPACES), (_RETURN, 0, 0, _FAIL | errno.EPERM)),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)

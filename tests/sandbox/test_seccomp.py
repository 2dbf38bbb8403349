"""Tests of the seccomp filter with a BPF interpreter. In tests/agent/toolbox/test_shell.py, the kernel applies it."""

import errno
import struct

import pytest

from gateway.sandbox.seccomp import filter_program

ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
X86_64, AARCH64, I386, ARM = 0xC000003E, 0xC00000B7, 0x40000003, 0x40000028
NEWUSER, NEWNS, VFORK = 0x10000000, 0x00020000, 0x4000


def decide(machine: str, architecture: int, number: int, argument: int = 0) -> int:
    """Interpret the filter as the kernel does, for one system call."""
    program = filter_program(machine)
    assert program is not None
    data = struct.pack("<IIQQ", number, architecture, 0, argument)
    instructions = list(struct.iter_unpack("<HBBI", program))
    at, value = 0, 0
    while True:
        operation, if_true, if_false, operand = instructions[at]
        at += 1
        match operation:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, operand)
            case 0x06:
                return int(operand)
            case _:
                holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[operation]
                at += if_true if holds else if_false


@pytest.mark.parametrize(
    ("machine", "architecture", "keyctl", "read", "clone", "unshare"),
    [("x86_64", X86_64, 250, 0, 56, 272), ("aarch64", AARCH64, 219, 63, 220, 97)],
)
def test_the_filter_forbids_keys_and_namespaces(
    machine: str, architecture: int, keyctl: int, read: int, clone: int, unshare: int
) -> None:
    assert decide(machine, architecture, read) == ALLOW
    assert decide(machine, architecture, keyctl) == FAIL | errno.EPERM
    assert decide(machine, architecture, clone, VFORK) == ALLOW
    assert decide(machine, architecture, clone, NEWUSER | VFORK) == FAIL | errno.EPERM
    assert decide(machine, architecture, unshare, NEWNS) == FAIL | errno.EPERM
    assert decide(machine, architecture, unshare, 0x400) == ALLOW  # CLONE_FILES
    assert decide(machine, architecture, 425) == FAIL | errno.ENOSYS  # io_uring_setup
    assert decide(machine, architecture, 435) == FAIL | errno.ENOSYS  # clone3


@pytest.mark.parametrize(
    ("machine", "architecture", "calls"), [("x86_64", X86_64, (41, 53)), ("aarch64", AARCH64, (198, 199))]
)
def test_sockets_outside_of_the_network_namespace_are_refused(
    machine: str, architecture: int, calls: tuple[int, int]
) -> None:
    for call in calls:
        for family in (1, 2, 10, 16):
            assert decide(machine, architecture, call, family) == ALLOW
        for family in (0, 17, 30, 38, 40, 45, 1 << 31):  # PACKET, TIPC, ALG, VSOCK and MCTP, for example.
            assert decide(machine, architecture, call, family) == FAIL | errno.EAFNOSUPPORT


@pytest.mark.parametrize(("machine", "architecture"), [("x86_64", I386), ("aarch64", ARM), ("x86_64", AARCH64)])
def test_calls_of_another_architecture_kill_the_process(machine: str, architecture: int) -> None:
    assert decide(machine, architecture, 1) == KILL


@pytest.mark.parametrize("number", [0, 39, 101, 250, 520, 547])
def test_calls_under_their_x32_number_do_not_exist(number: int) -> None:
    assert decide("x86_64", X86_64, 0x40000000 | number) == FAIL | errno.ENOSYS


def test_an_unknown_machine_has_no_filter() -> None:
    assert filter_program("riscv64") is None

"""Tests that try to break out of the sandbox of a program, as a coding agent that obeys a stranger would."""

import asyncio
import ctypes
import os
import socket
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from gateway.sandbox.bubblewrap import SandboxUnavailable
from gateway.sandbox.program import run_program
from tests.sandbox.harness import NAP, needs_sandbox, sandboxed_shell

pytestmark = needs_sandbox

CANARY = "canary-outside"
EXCHANGE = 2
AT_FDCWD = -100


class Machine(NamedTuple):
    repository: Path
    other: Path
    data: Path
    readable: Path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(*(tmp_path / name for name in ("repository", "other", "data", "readable")))
    for folder in machine:
        folder.mkdir()
    for outside in (machine.other, machine.data):
        (outside / "secret").write_text(CANARY)
    (machine.readable / "file").write_text("readable")
    return machine


async def attempt(script: str, machine: Machine, **changes: object) -> str:
    program = sandboxed_shell(script, machine.repository, readable=(machine.readable,), **changes)
    async with asyncio.timeout(120):
        return (await run_program(program, seconds=60, max_output=100_000)).output


async def test_links_and_paths_lead_nowhere(machine: Machine) -> None:
    outside = {
        "shadow": "/etc/shadow",
        "home": str(Path.home()),
        "other": str(machine.other),
        "data": str(machine.data),
        "up": "..",
        "first": f"/proc/1/root{machine.other}",
        "ours": f"/proc/{os.getpid()}/root{machine.other}",
    }
    for name, target in outside.items():
        (machine.repository / name).symlink_to(target)
    ways = f"""
        cat {machine.other}/secret ../other/secret {machine.repository}/../data/secret up/other/secret
        cat other/secret data/secret first/secret ours/secret shadow /etc/shadow /etc/gshadow
        cat /proc/1/root{machine.data}/secret /proc/self/root{machine.data}/secret /proc/1/cwd/../data/secret
        cat /proc/{os.getpid()}/environ /proc/{os.getpid()}/root{machine.data}/secret
        ln {machine.other}/secret hard; cat hard; ln -s {machine.data}/secret soft; cat soft
        find / -xdev -name secret; ls -A {machine.data} home {Path.home()} /root /var /run /sys /srv /boot
        cd {machine.repository} && cd ../.. && cat other/secret data/secret */secret
    """
    said = await attempt(ways, machine)
    assert CANARY not in said
    assert "root:*:" not in said
    assert "root:$" not in said
    listed = [line for line in said.splitlines() if "No such file" not in line and "cannot" not in line]
    assert not [line for line in listed if "secret" in line and "not" not in line], said


async def test_nothing_else_can_be_written(machine: Machine) -> None:
    places = f"/ /usr /usr/bin /etc /bin /dev /proc /proc/sys/kernel /home {machine.readable} /attachments"
    said = await attempt(
        f"""
        for place in {places}; do touch $place/new && echo WRITTEN $place; done
        echo x >> {machine.readable}/file && echo WRITTEN; rm {machine.readable}/file && echo WRITTEN
        echo x >> /etc/passwd && echo WRITTEN; chmod 666 /etc/passwd && echo WRITTEN
        mv {machine.readable} {machine.repository}/moved && echo WRITTEN
        mount -o remount,rw / && echo MOUNTED; mount -t tmpfs none /tmp && echo MOUNTED; umount /tmp && echo MOUNTED
        unshare --user --map-root-user true && echo NAMESPACE; unshare --mount true && echo NAMESPACE
        chroot / true && echo NAMESPACE; nsenter --target 1 --mount true && echo NAMESPACE
        """,
        machine,
    )
    assert "WRITTEN" not in said
    assert "MOUNTED" not in said
    assert "NAMESPACE" not in said
    assert (machine.readable / "file").read_text() == "readable"


async def test_other_processes_cannot_be_seen_or_changed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    said = await attempt(
        f"""
        cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; ls -d /proc/[0-9]* | wc -l
        kill -9 {os.getpid()} && echo KIL''LED; kill -9 1
        dd if=/proc/1/mem of=/dev/null bs=1 count=1 && echo MEM''ORY
        echo still here
        """,
        machine,
    )
    assert CANARY not in said
    assert "KILLED" not in said
    assert "MEMORY" not in said
    assert "still here" in said
    assert [int(line) for line in said.splitlines() if line.isdigit()][-1] < 10


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86_64")
async def test_the_kernel_refuses_dangerous_calls(machine: Machine) -> None:
    calls = {"ptrace": (101, 16, 1, 0, 0), "process_vm_readv": (310, 1, 0, 0, 0, 0, 0), "mount": (165, 0, 0, 0, 0, 0)}
    calls |= {"setns": (308, 0, 0), "unshare": (272, 0x10000000), "keyctl": (250, 0, -3, 1), "bpf": (321, 0, 0, 0)}
    parts = [f"syscall({', '.join(map(str, call))}); print $!+0, qq( ); $! = 0;" for call in calls.values()]
    assert await attempt(f"perl -e '$! = 0; {' '.join(parts)}'", machine) == "1 " * len(calls)


async def test_without_network_no_service_of_the_machine_can_be_reached(machine: Machine) -> None:
    name = f"gatehouse-test-{NAP}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as control,
    ):
        abstract.bind(f"\0{name}")
        abstract.listen()
        control.bind(str(machine.data / "control.sock"))
        control.listen()
        (machine.repository / "link.sock").symlink_to(machine.data / "control.sock")
        tries = f"""
import socket
for family, address in [
    (socket.AF_INET, ("127.0.0.1", {tcp.getsockname()[1]})), (socket.AF_UNIX, "\\0{name}"),
    (socket.AF_UNIX, "{machine.data}/control.sock"), (socket.AF_UNIX, "link.sock"),
    (socket.AF_UNIX, "/run/gatehouse-sandbox.socket"), (socket.AF_UNIX, "/run/dbus/system_bus_socket"),
]:
    try:
        socket.socket(family).connect(address)
        print("CONNECTED", address)
    except OSError as error:
        print(error.errno)
"""
        (machine.repository / "tries.py").write_text(tries)
        said = await attempt("python3 tries.py; ls /sys/class/net; wc -l < /proc/net/dev", machine)
        assert said.splitlines()[:2] == ["111", "111"]
        assert "CONNECTED" not in said
        allowed = await attempt("python3 tries.py", machine, network=True)
        # Abstract sockets belong to the network.
        assert [line for line in allowed.splitlines() if "CONNECTED" in line] != []
        assert "control.sock" not in allowed
        assert "link.sock" not in allowed


async def test_folders_that_are_exchanged_during_the_start_are_not_shown(machine: Machine) -> None:
    """Another agent in the same repository replaces a folder by a link again and again."""
    folder, link = machine.repository / ".git", machine.repository / "link"
    folder.mkdir()
    link.symlink_to(machine.data)
    libc, stop = ctypes.CDLL(None), threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            libc.renameat2(AT_FDCWD, os.fsencode(folder), AT_FDCWD, os.fsencode(link), EXCHANGE)

    program = sandboxed_shell(f"cat {folder}/secret", machine.other, writable=(machine.other, folder))
    thread = threading.Thread(target=exchange)
    thread.start()
    refused, seen = 0, ""
    try:
        for _ in range(100):
            try:
                seen += (await run_program(program, seconds=60, max_output=1000)).output
            except SandboxUnavailable:
                refused += 1
    finally:
        stop.set()
        thread.join()
    assert CANARY not in seen
    assert refused

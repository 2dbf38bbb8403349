"""No program outlives the process that started it, or the service that runs it, however that ends."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.sandbox.program_process import _GATE, end_orphans
from tests.sandbox.harness import NAP, needs_sandbox, processes_with

pytestmark = [needs_sandbox, pytest.mark.timeout(180)]

OPENER = """
import asyncio, sys
from pathlib import Path
from gateway.sandbox.program import open_program
from tests.sandbox.harness import sandboxed_shell

async def main():
    service = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    script = f"trap '' TERM; (setsid sleep {sys.argv[2]} &); echo started; sleep {sys.argv[2]}"
    print("opening", flush=True)
    async with open_program(sandboxed_shell(script, Path(sys.argv[1])), service) as program:
        print((await program.stdout.readline()).decode(), end="", flush=True)
        await program.wait()
        print("ended", flush=True)

asyncio.run(main())
"""

SERVICE = """
import asyncio, socket, sys
from gateway.sandbox.remote import serve_commands
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print("listening", flush=True)
    asyncio.run(serve_commands(listener))
"""


def start(script: str, *arguments: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline()
    return process


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_killed_gateway_leaves_no_program(tmp_path: Path) -> None:
    nap = f"{NAP}51"
    opener = start(OPENER, str(tmp_path), nap)
    assert opener.stdout
    assert opener.stdout.readline() == "started\n"
    kill(opener)
    assert not processes_with(nap)


def test_a_gateway_that_is_killed_while_it_starts_a_program_leaves_none(tmp_path: Path) -> None:
    nap = f"{NAP}52"
    for step in range(16):
        opener = start(OPENER, str(tmp_path), nap)
        time.sleep(step * 0.006)  # Another moment of the start each time.
        kill(opener)
    end_orphans()  # As the next gateway does. Rarely, a child of bubblewrap is left that waits and runs nothing.
    assert not processes_with(nap)


def test_the_child_of_a_killed_bubblewrap_is_ended_by_the_next_gateway() -> None:
    """Without a parent, it would wait for its message for ever."""
    nap = f"{NAP}55"
    inside = ["sh", "-c", f"sleep {nap}", _GATE]  # The last word marks a sandbox of ours.
    options = ["--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc"]
    # Without a pipe: the child would keep it open, and `kill` waits for its end.
    sandbox = subprocess.Popen([shutil.which("bwrap") or "", *options, *inside], text=True)
    while not (first := Path(f"/proc/{sandbox.pid}/task/{sandbox.pid}/children").read_text().split()):
        assert sandbox.poll() is None
    end_orphans()  # It is not an orphan yet.
    assert Path("/proc", first[0]).exists()
    kill(sandbox)
    end_orphans()
    assert not processes_with(nap)


def test_a_killed_gateway_leaves_no_program_in_the_service(tmp_path: Path) -> None:
    nap, socket = f"{NAP}53", tmp_path / "socket"
    service = start(SERVICE, str(socket))
    try:
        opener = start(OPENER, str(tmp_path), nap, str(socket))
        assert opener.stdout
        assert opener.stdout.readline() == "started\n"
        kill(opener)
        assert not processes_with(nap)
        assert service.poll() is None
    finally:
        kill(service)


def test_a_killed_service_leaves_no_program_and_the_gateway_is_told(tmp_path: Path) -> None:
    nap, socket = f"{NAP}54", tmp_path / "socket"
    service = start(SERVICE, str(socket))
    opener = start(OPENER, str(tmp_path), nap, str(socket))
    assert opener.stdout
    assert opener.stdout.readline() == "started\n"
    kill(service)
    try:
        assert opener.communicate(timeout=60)[0] == "ended\n"
    finally:
        opener.kill()
    assert not processes_with(nap)

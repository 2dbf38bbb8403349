"""A machine with a real systemd, booted in namespaces."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

COMMAND_TIMEOUT = 120
UMASK = 0o022  # Root's umask inside. The service's user must read the files that the tests write.
PROGRAMS = ("unshare", "nsenter", "pivot_root", "systemctl", "bwrap")
MISSING = [program for program in PROGRAMS if shutil.which(program) is None]

NEEDS_NAMESPACES = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to boot systemd in namespaces"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.timeout(900),  # For slow machines: there is one boot for all checks.
]


class Machine:
    def __init__(self, process: int) -> None:
        self._enter = ["nsenter", "--target", str(process), "--all", "env", "-i", "HOME=/root"]
        self._enter += ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]

    def attempt(self, script: str) -> subprocess.CompletedProcess[str]:
        command = [*self._enter, "sh", "-c", script]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT, check=False, umask=UMASK
        )

    def run(self, script: str) -> str:
        done = self.attempt(script)
        assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}\n{self.journal()}"
        return done.stdout

    def until(self, condition: str) -> None:
        self.run(f"timeout {COMMAND_TIMEOUT // 2} sh -c 'until {condition}; do sleep 0.1; done'")

    def write(self, path: str, text: str) -> None:
        command = [*self._enter, "sh", "-c", f"mkdir -p $(dirname {path}) && cat > {path}"]
        subprocess.run(command, input=text, text=True, timeout=COMMAND_TIMEOUT, check=True, umask=UMASK)

    def copy(self, source: Path, path: str) -> None:
        with source.open("rb") as content:
            command = [*self._enter, "sh", "-c", f"cat > {path}"]
            subprocess.run(command, stdin=content, timeout=COMMAND_TIMEOUT, check=True, umask=UMASK)

    def property(self, name: str, of: str = "gatehouse") -> str:
        return self.run(f"systemctl show {of} --property={name} --value").strip()

    def journal(self) -> str:
        """Return the state of the unit and the last lines of the journal."""
        return self.attempt("systemctl status gatehouse --no-pager --lines 0; journalctl --no-pager --lines 80").stdout


@contextmanager
def booted(root: Path, *mounts: str | Path) -> Iterator[Machine]:
    """Boot the system in the folder `root`, optionally with the repository and a Python in it."""
    arguments = ["sh", str(Path(__file__).with_name("boot.sh")), str(root), *map(str, mounts)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as booting:
        try:
            yield _booted(booting)
        finally:
            booting.kill()  # --kill-child ends all processes inside.


def _booted(booting: "subprocess.Popen[str]") -> Machine:
    children = Path(f"/proc/{booting.pid}/task/{booting.pid}/children")
    while booting.poll() is None:
        if init := children.read_text().split():
            machine = Machine(int(init[0]))
            asked = machine.attempt("systemctl is-system-running --wait")
            if asked.stdout.strip() in {"running", "degraded"}:
                return machine
    said = booting.stdout.read() if booting.stdout else ""
    pytest.skip(f"systemd cannot boot in namespaces here: {said.strip()[-200:]}")

"""Runs servers that refuse to run as root: as an ordinary user, each in a folder of its own."""

import os
import pwd
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

from tests.memory_folder import memory_folder

_ACCOUNTS = ("postgres", "nobody")
_STOP_TIMEOUT = 60.0
_DISK = Path("/tmp")  # noqa: S108 - mkdtemp avoids the races

# Reads the process id of the server from each line; an empty line means that it does not run.
_WATCHDOG = 'while read -r line; do pid=$line; done; [ -z "$pid" ] || kill -KILL "$pid"; rm -rf "$0"'


def _account() -> pwd.struct_passwd | None:
    """Return the account to run servers as, or None for the present one."""
    if os.geteuid() != 0:
        return None
    existing = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(existing[name] for name in _ACCOUNTS if name in existing)


class ServerFolder:
    """A folder for the files and the sockets of one server, and the processes that run in it.

    It belongs to the account that the server runs as: nobody else can enter it, except root. If this process is
    killed, a watchdog process kills the server and deletes the folder. Programs run from a folder on disk only.
    """

    def __init__(self, name: str, *, on_disk: bool = False) -> None:
        # The name is short: the path of a socket has at most 107 bytes.
        self.path = Path(mkdtemp(prefix=f"gatehouse-{name}-", dir=(None if on_disk else memory_folder()) or _DISK))
        self.log = self.path / "log"
        self._account = _account()
        if self._account:
            os.chown(self.path, self._account.pw_uid, self._account.pw_gid)
        self._watchdog = self._popen(["sh", "-c", _WATCHDOG, str(self.path)], stdin=subprocess.PIPE)

    def can_run(self, program: Path) -> bool:
        """Return whether the account of the server can reach `program`."""
        try:
            return self._popen([str(program), "--version"]).wait(_STOP_TIMEOUT) == 0
        except PermissionError:
            return False

    def own(self, path: Path) -> None:
        """Give `path` and everything in it to the account of the server."""
        if self._account:
            for each in [path, *path.rglob("*")]:
                os.chown(each, self._account.pw_uid, self._account.pw_gid, follow_symlinks=False)

    def run(self, *command: str | Path) -> None:
        """Run a program to its end. Raises if it fails."""
        if self._popen([str(word) for word in command]).wait(_STOP_TIMEOUT) != 0:
            raise RuntimeError(f"{command[0]} failed:\n{self.log.read_text()}")

    def start(self, *command: str | Path) -> subprocess.Popen[bytes]:
        """Start the server. A folder has at most one."""
        process = self._popen([str(word) for word in command])
        self._tell_watchdog(str(process.pid))
        return process

    def server_ended(self) -> None:
        self._tell_watchdog("")

    def close(self) -> None:
        """Delete the folder. If the server still runs, it is killed."""
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog.wait(_STOP_TIMEOUT)

    def _tell_watchdog(self, line: str) -> None:
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.write(f"{line}\n".encode())
        self._watchdog.stdin.flush()

    def _popen(self, command: Sequence[str], stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.path,
                # Variables such as PGDATA and PGPORT configure the programs of PostgreSQL.
                env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
                stdin=stdin,
                stdout=log,
                stderr=log,
                user=self._account and self._account.pw_uid,
                group=self._account and self._account.pw_gid,
                extra_groups=[] if self._account else None,
                umask=0o077,
                start_new_session=True,  # Ctrl-C in the terminal is for pytest.
            )

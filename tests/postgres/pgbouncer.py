"""Starts a real PgBouncer in front of a PostgreSQL server."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import psycopg

from tests.polling import POLL_INTERVAL
from tests.postgres.folder import ServerFolder
from tests.postgres.server import PORT, PostgresServer

_TIMEOUT = 60.0
_SETTINGS = """\
[databases]
* = host={server} port={port}

[pgbouncer]
pool_mode = transaction
default_pool_size = {pool_size}
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users
admin_users = postgres
"""


def find_pgbouncer() -> Path | None:
    # Debian installs it where only root looks for programs.
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return Path(program) if program else None


class PgBouncer:
    """A connection pool that gives a client a connection of the server for one transaction only."""

    def __init__(self, program: Path, server: PostgresServer, *, pool_size: int) -> None:
        self._program = program
        self._server_folder = server.socket_folder
        self._folder = ServerFolder("pgbouncer")
        folder = self._folder.path
        settings = _SETTINGS.format(server=self._server_folder, port=PORT, folder=folder, pool_size=pool_size)
        (folder / "pgbouncer.ini").write_text(settings)
        (folder / "users").write_text('"postgres" ""\n')
        self._folder.own(folder)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def log(self) -> str:
        return self._folder.log.read_text()

    def url(self, server_url: str) -> str:
        """Return the URL of a database of the server, through the pool."""
        return server_url.replace(f"host={self._server_folder}", f"host={self._folder.path}")

    def start(self) -> None:
        assert self._process is None, "PgBouncer is running already"
        self._process = self._folder.start(self._program, self._folder.path / "pgbouncer.ini")
        deadline = time.monotonic() + _TIMEOUT
        admin = f"postgresql:///pgbouncer?host={self._folder.path}&port={PORT}&user=postgres"
        while True:
            try:
                psycopg.connect(admin, autocommit=True).close()
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PgBouncer does not start:\n{self.log}") from error
            else:
                return
            time.sleep(POLL_INTERVAL)

    def kill(self) -> None:
        """End PgBouncer at once. All connections through it are lost."""
        assert self._process is not None, "PgBouncer is not running"
        self._process.kill()
        self._process.wait(_TIMEOUT)
        self._process = None
        self._folder.server_ended()

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        self._folder.close()

"""Runs two PostgreSQL servers under Patroni, with etcd, on ports of 127.0.0.1."""

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack, closing, suppress
from urllib.request import urlopen

import psycopg
from psycopg import sql

from tests.polling import POLL_INTERVAL
from tests.ports import free_port
from tests.postgres.folder import ServerFolder
from tests.postgres.server import system_programs

_TIMEOUT = 120.0
_SCOPE = "gatehouse-tests"


def missing_programs() -> str:
    """Return what is not installed."""
    missing = [name for name in ("patroni", "etcd") if shutil.which(name) is None]
    if system_programs() is None:
        missing.append("PostgreSQL")
    return " and ".join(missing)


class PatroniNode:
    """A PostgreSQL server and the Patroni that runs it."""

    def __init__(self, name: str, etcd_port: int) -> None:
        programs = system_programs()
        assert programs is not None
        self.name = name
        self.port, self._api_port = free_port(), free_port()
        self._folder = ServerFolder(f"patroni-{name}")
        self._data = self._folder.path / "data"
        self._config = self._folder.path / "patroni.yml"
        address = f"127.0.0.1:{self.port}"
        settings = {
            "scope": _SCOPE,
            "name": name,
            "restapi": {"listen": f"127.0.0.1:{self._api_port}", "connect_address": f"127.0.0.1:{self._api_port}"},
            "etcd3": {"host": f"127.0.0.1:{etcd_port}"},
            "bootstrap": {
                "dcs": {
                    # The shortest times that Patroni allows.
                    "ttl": 20,
                    "loop_wait": 1,
                    "retry_timeout": 3,
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"wal_keep_size": "64MB"}},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, {"auth": "trust"}, "no-sync", "data-checksums"],
                "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
            },
            "postgresql": {
                "listen": address,
                "connect_address": address,
                "data_dir": str(self._data),
                "bin_dir": str(programs.folder),
                "pgpass": str(self._folder.path / "pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres", "password": "unused"},
                    "replication": {"username": "replicator", "password": "unused"},
                    "rewind": {"username": "postgres", "password": "unused"},
                },
                "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
                "parameters": {"shared_buffers": "16MB", "unix_socket_directories": str(self._folder.path)},
            },
        }
        self._config.write_text(json.dumps(settings))  # JSON is YAML, too.
        self._folder.own(self._config)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._folder.log.read_text()

    def start(self) -> None:
        self._process = self._folder.start("patroni", self._config)

    def role(self) -> str:
        """Return what Patroni says about the server, such as `primary` or `replica`."""
        with suppress(OSError, ValueError), urlopen(f"http://127.0.0.1:{self._api_port}/patroni", timeout=5) as answer:
            found = json.load(answer)
            if found.get("state") == "running":
                return {"master": "primary"}.get(found["role"], str(found["role"]))
        return "unknown"

    def kill(self) -> None:
        """Kill Patroni and then the server, as a machine dies."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_TIMEOUT)
        self._process = None
        self._folder.server_ended()
        with suppress(FileNotFoundError, ProcessLookupError):
            postmaster = int((self._data / "postmaster.pid").read_text().split()[0])
            os.kill(postmaster, signal.SIGKILL)  # Its other processes notice that, and end.

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        self._folder.close()


class Patroni:
    """Two servers: a primary and its synchronous standby."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        with ExitStack() as stack:
            self._etcd_folder = stack.enter_context(closing(ServerFolder("etcd")))
            port, peer = free_port(), free_port()
            client, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
            etcd = self._etcd_folder.start(
                "etcd",
                *("--data-dir", self._etcd_folder.path / "data", "--name", "one", "--unsafe-no-fsync"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
                *("--initial-cluster", f"one={peers}"),
            )
            stack.callback(etcd.wait, _TIMEOUT)
            stack.callback(etcd.kill)
            self.nodes = [stack.enter_context(closing(PatroniNode(name, port))) for name in ("one", "two")]
            self.nodes[0].start()
            self.await_primary()
            self.nodes[1].start()
            self.await_standby()
            self._stack = stack.pop_all()

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://postgres@{hosts}/gatehouse"

    def create_database(self) -> None:
        with psycopg.connect(self._server_url(self.await_primary()), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE gatehouse TEMPLATE template0"))

    def await_primary(self) -> PatroniNode:
        """Wait for a primary, and return it."""
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            for node in self.nodes:
                if node.role() == "primary":
                    return node
            time.sleep(POLL_INTERVAL)
        raise TimeoutError("\n".join(node.log for node in self.nodes))

    def await_standby(self) -> None:
        """Wait until the other server streams from the primary, and has every commit."""
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            with suppress(psycopg.Error), psycopg.connect(self._server_url(self.await_primary())) as connection:
                found = connection.execute("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'")
                if "sync" in {state for (state,) in found}:
                    return
            time.sleep(0.1)
        raise TimeoutError("\n".join(node.log for node in self.nodes))

    def close(self) -> None:
        self._stack.close()

    def _server_url(self, node: PatroniNode) -> str:
        return f"postgresql://postgres@127.0.0.1:{node.port}/postgres"

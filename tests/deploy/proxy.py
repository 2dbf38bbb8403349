"""Runs the real HAProxy with the configuration of deploy/cluster, in front of nodes on this machine."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.polling import POLL_INTERVAL
from tests.ports import free_port

CONFIG = Path(__file__).parents[2] / "deploy" / "cluster" / "haproxy.cfg"
PUBLIC_HOST = "localhost:8080"
"""What clients send as their Host. The configuration of the nodes allows it."""
_TIMEOUT = 60.0


def find_haproxy() -> str:
    """Return the program. Skips the test if it is not installed."""
    # Debian installs it where only root looks for programs.
    program = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("HAProxy is not installed")
    return program


@contextmanager
def haproxy(folder: Path, ports: Sequence[int]) -> Iterator[str]:
    """Run HAProxy in front of the nodes with these ports, and yield its URL. Only its addresses are changed."""
    program, port = find_haproxy(), free_port()
    text = CONFIG.read_text().replace("bind :8080", f"bind 127.0.0.1:{port}")
    for name, node_port in zip(("one", "two", "three"), ports, strict=True):
        text, count = re.subn(rf"server {name} {name}:8420", f"server {name} 127.0.0.1:{node_port}", text)
        assert count == 2, "once in each backend"
    path = folder / "haproxy.cfg"
    path.write_text(text)
    with (folder / "haproxy.log").open("w") as log:
        process = subprocess.Popen([program, "-db", "-f", path], stdout=log, stderr=log)
        try:
            deadline = monotonic() + _TIMEOUT
            while not _listens(port):
                assert process.poll() is None, (folder / "haproxy.log").read_text()
                assert monotonic() < deadline, "HAProxy does not listen"
                sleep(POLL_INTERVAL)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(_TIMEOUT)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True

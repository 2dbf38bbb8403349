"""Starts `gatehouse run` with the default settings for benchmarks."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from urllib.error import URLError
from urllib.request import urlopen

START_DEADLINE = 120.0
"""Seconds. On a busy machine with many sessions, a start takes far longer than alone."""
GATEHOUSE = str(Path(sys.executable).parent / "gatehouse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    url: str
    token: str
    pid: int
    ready_ms: float


@contextmanager
def started(settings: str = "", prepare: Callable[[Path], None] | None = None) -> Iterator[Daemon]:
    """Start a daemon in a new home folder on a free port, and wait until `/readyz` answers 200.

    `settings` is added to its configuration. `prepare` is called with its data folder before the start.
    """
    with TemporaryDirectory() as home:
        port = free_port()
        config = Path(home) / "gatehouse.toml"
        config.write_text(f"[http]\nport = {port}\n{settings}")
        if prepare is not None:
            prepare(Path(home) / ".gatehouse")
        began = perf_counter()
        process = subprocess.Popen(
            [GATEHOUSE, "run", "--config", config],
            cwd=home,
            env={**os.environ, "HOME": home},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            until_answering(f"{url}/readyz")
            ready_ms = (perf_counter() - began) * 1000
            token = (Path(home) / ".gatehouse/http.token").read_text().strip()
            yield Daemon(url=url, token=token, pid=process.pid, ready_ms=ready_ms)
        finally:
            process.terminate()
            process.wait()


def until_answering(url: str) -> None:
    deadline = perf_counter() + START_DEADLINE
    while perf_counter() < deadline:
        try:
            with urlopen(url) as answer:  # noqa: S310 - a loopback URL
                json.load(answer)
        except (URLError, OSError):
            continue
        return
    raise TimeoutError(url)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

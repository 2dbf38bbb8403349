"""Starts a real `gatehouse run` with its own home folder, reads its log, and stops it at the end of the test."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.forks.process import GATEHOUSE, Forked, Started, forked

COMMAND = Path(sys.executable).parent / "gatehouse"
TIMEOUT = 60.0

DEFAULTS = """
[gateway]
data_dir = "{home}/data"
[http]
port = 0
"""


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment without the configuration of this machine, and with that of `home` if there is one."""
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG"} or name.startswith("COV")}
    path = home / "gatehouse.toml"
    config = {"GATEHOUSE_CONFIG": str(path)} if path.exists() else {}
    return {**kept, **config, "HOME": str(home), **(extra or {})}


def write_config(home: Path, text: str = DEFAULTS) -> Path:
    path = home / "gatehouse.toml"
    path.write_text(text.replace("{home}", str(home)))
    path.chmod(0o600)
    return path


def gatehouse(
    *arguments: str, home: Path, stdin: str = "", timeout: float = TIMEOUT
) -> subprocess.CompletedProcess[str]:
    """Run a command, and return its result."""
    return forked([str(COMMAND), *arguments], cwd=home, env=environment(home), stdin=stdin, timeout=timeout)


Start = Callable[[list[str], Path, dict[str, str], tuple[int, int, int]], Started]
"""Starts a command in a folder, with an environment and its standard streams."""


def by_fork(command: list[str], cwd: Path, env: dict[str, str], streams: tuple[int, int, int]) -> Started:
    """Fork the command from a process that has its modules imported already."""
    return Forked(command, cwd=cwd, env=env, streams=streams)


def by_fork_with(*modules: str) -> Start:
    """Return a `Start` like `by_fork` that imports more modules before the fork."""
    program = replace(GATEHOUSE, modules=(*GATEHOUSE.modules, *modules))

    def start(command: list[str], cwd: Path, env: dict[str, str], streams: tuple[int, int, int]) -> Started:
        return Forked(command, cwd=cwd, env=env, streams=streams, program=program)

    return start


def by_shell(*before: str) -> Start:
    """Return a `Start` that runs the command itself, as a shell does, under the command `before` if given."""

    def start(command: list[str], cwd: Path, env: dict[str, str], streams: tuple[int, int, int]) -> Started:
        stdin, stdout, stderr = streams
        return subprocess.Popen([*before, *command], cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)

    return start


class DaemonProcess:
    """A running daemon. `log` has all its log lines so far."""

    def __init__(self, home: Path, extra: Mapping[str, str] | None = None, start: Start = by_fork) -> None:
        self.home = home
        self.data = home / "data"
        self.log: list[dict[str, Any]] = []  # Any: log lines have different fields.
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()  # As above.
        self._errors = (home / "stderr").open("w+")
        ours, theirs = os.pipe()
        self._stdout = open(ours)  # noqa: PTH123, SIM115 - a pipe has no path; `__exit__` closes it
        with Path(os.devnull).open() as nothing, open(theirs, "w") as stdout:  # noqa: PTH123 - as above
            streams = (nothing.fileno(), stdout.fileno(), self._errors.fileno())
            command = [str(COMMAND), "--config", str(home / "gatehouse.toml"), "run"]
            self.process = start(command, home, environment(home, extra), streams)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        self._stdout.close()
        self._errors.close()

    def _read(self) -> None:
        for line in self._stdout:
            event = json.loads(line)
            self.log.append(event)
            self._events.put(event)
        self._events.put(None)

    def wait_for(self, event: str, **fields: object) -> dict[str, Any]:  # Any: log lines have different fields.
        """Return the next log line of that event. Fails if the daemon ends without it."""
        while True:
            found = self._events.get(timeout=TIMEOUT)
            assert found is not None, f"ended without {event}: {self.errors()}"
            if found["event"] == event and fields.items() <= found.items():
                return found

    def ready(self) -> Self:
        self.url = str(self.wait_for("gateway_ready")["url"])
        return self

    def errors(self) -> str:
        return (self.home / "stderr").read_text()

    def link(self) -> str:
        """Return a new sign-in link."""
        return gatehouse("link", home=self.home).stdout.strip()

    @property
    def token(self) -> str:
        return (self.data / "http.token").read_text().strip()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the daemon and wait for its end. Its lock is free then."""
        self.signal(signal.SIGKILL)
        self.process.wait(TIMEOUT)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT)


@contextmanager
def running(home: Path, config: str = DEFAULTS, start: Start = by_fork) -> Iterator[DaemonProcess]:
    """Run a daemon with `config` during the block. It is ready when the block starts."""
    home.mkdir(parents=True, exist_ok=True)
    write_config(home, config)
    with DaemonProcess(home, start=start) as daemon:
        yield daemon.ready()

"""A fork server for daemons under test, with all modules imported already, and the code of one such daemon.

It is itself forked, or run as `python -m tests.crash.fork_server` with the names of more modules to import. It reads
one `DaemonSpec` per line, and writes the pid of each daemon that it starts and the status with which one ends. It has
no threads and no event loop, so it can fork safely.
"""

from tests.crash import kill_points

kill_points.install()  # Before any import of Gatehouse's modules, which may keep a reference to `os.fsync`.

import asyncio  # noqa: E402 - as above
import importlib  # noqa: E402 - as above
import os  # noqa: E402 - as above
import select  # noqa: E402 - as above
import signal  # noqa: E402 - as above
import sys  # noqa: E402 - as above
import tempfile  # noqa: E402 - as above
import traceback  # noqa: E402 - as above
from contextlib import suppress  # noqa: E402 - as above
from dataclasses import replace  # noqa: E402 - as above
from datetime import UTC, datetime, timedelta  # noqa: E402 - as above
from functools import partial  # noqa: E402 - as above
from pathlib import Path  # noqa: E402 - as above
from typing import Any  # noqa: E402 - as above

from config import Settings  # noqa: E402 - as above
from gateway.agent.tools import Toolbox  # noqa: E402 - as above
from gateway.build import open_daemon  # noqa: E402 - as above
from gateway.errors import CannotStart  # noqa: E402 - as above
from gateway.observability.logging import configure  # noqa: E402 - as above
from tests.crash import scripted_channel  # noqa: E402 - as above
from tests.crash.daemon_spec import CHANNEL, DaemonSpec  # noqa: E402 - as above
from tests.crash.scripted_agent import ScriptedModel, recording_tools  # noqa: E402 - as above
from tests.forks.warm_up import warm_up  # noqa: E402 - as above

EXIT_CONFIG = 78
MAX_READ = 65_536


def settings(spec: DaemonSpec) -> Settings:
    return Settings.model_validate(
        {
            "gateway": {
                "data_dir": str(spec.data_dir),
                "flush_interval": spec.flush_interval,
                "shutdown_timeout": spec.shutdown_timeout,
                "max_backlog_age": spec.max_backlog_age,
                "max_parallel_turns": spec.max_parallel_turns,
                "max_queued_per_session": 20_000,
                "max_queued": 20_000,
                "log_format": "json",
                "owners": [f"{CHANNEL}:owner"],
            },
            "storage": {"url": spec.storage},
            "http": {"port": 0},
            "session": {"backlog_limit": spec.backlog_limit},
            "channels": {"web": {"enabled": False}, "terminal": {"enabled": False}, **channels(spec)},
            **(coding_agent(spec) if spec.coder is not None else {}),
        }
    )


def coding_agent(spec: DaemonSpec) -> dict[str, Any]:  # Any: as for channels.
    return {
        "agents": {"coder": {"backend": "acp", "repos": ["app"], **(spec.coder or {})}},
        "repos": [{"id": "app", "name": "App", "path": str(spec.repo)}],
        "bindings": [{"agent": "coder", "channel": CHANNEL}],
        "tools": {"shell": {"sandbox_socket": str(spec.sandbox_socket)}} if spec.sandbox_socket else {},
    }


def channels(spec: DaemonSpec) -> dict[str, Any]:  # Any: the tables of channels differ.
    scripted = {
        "dm_policy": "open",
        "rate_limit": 0,
        "busy": spec.busy,
        "options": {"socket": str(spec.socket), "flavour": spec.flavour},
    }
    return spec.channels or {CHANNEL: scripted}


def current_time(spec: DaemonSpec) -> datetime:
    offset = float(spec.clock.read_text()) if spec.clock.exists() else 0.0
    return datetime.now(UTC) + timedelta(seconds=offset)


async def serve(spec: DaemonSpec) -> None:
    """Run the gateway as `gatehouse run` does, with the scripted model and tools."""
    configured = settings(spec)
    configure(configured.gateway.log_level, configured.gateway.log_format, frozenset(), sys.stdout)
    async with open_daemon(configured, listen=False, now=partial(current_time, spec)) as daemon:
        if spec.coder is None:
            model, toolbox = ScriptedModel(spec.gate), Toolbox(recording_tools(spec.effects))
            info = replace(daemon.agents["main"].info, sums_up=spec.archives)
            daemon.agents.replace("main", lambda agent: replace(agent, provider=model, toolbox=toolbox, info=info))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, daemon.stop)
        await daemon.run(lambda: None)


def run_daemon(spec: DaemonSpec) -> int:
    """Run a daemon in a forked process. Returns its exit status."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)
    os.umask(0o077)
    kill_points.arm(spec.die_at, spec.death_report, spec.resume if spec.pauses else None)
    try:
        asyncio.run(serve(spec))
    except CannotStart as refusal:
        print(refusal, file=sys.stderr)  # noqa: T201 - as the command does
        return EXIT_CONFIG
    except BaseException:  # noqa: BLE001 - the process ends here
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def install_channel(folder: Path) -> None:
    """Give the scripted channel an entry point, as an installed package has."""
    package = folder / "scripted-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted\nVersion: 1\n")
    (package / "entry_points.txt").write_text(
        f"[gatehouse.channels]\n{CHANNEL} = {scripted_channel.__name__}:open_channel\n"
    )
    sys.path.append(str(folder))


def start(spec: DaemonSpec) -> int:
    """Fork a daemon. Returns its pid."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = run_daemon(spec)
        finally:
            os._exit(status)
    return pid


def report(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def report_ended_daemons() -> None:
    """Report each daemon that has ended, with its status. A negative status is the signal that killed it."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            report("ended", ended[0], os.waitstatus_to_exitcode(ended[1]))


def main() -> int:
    wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_write)
    with tempfile.TemporaryDirectory() as folder:
        install_channel(Path(folder))
        report("ready")
        rest = b""
        while True:
            readable, _, _ = select.select([0, wakeup_read], [], [])
            if wakeup_read in readable:
                os.read(wakeup_read, MAX_READ)
            report_ended_daemons()
            if 0 in readable:
                if not (data := os.read(0, MAX_READ)):
                    return 0
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    report("started", start(DaemonSpec.decode(line)))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    warm_up()
    sys.exit(main())

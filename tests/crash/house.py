"""The process that daemons under test are forked from, with everything imported already; and one such daemon.

It is forked itself, or run as `python -m tests.crash.house` with the names of modules to import besides. It reads
orders, one a line, and writes the pid of each daemon it starts and the status with which one has ended. It has no
threads and no event loop, so that forking it is safe.
"""

from tests.crash import points

points.install()  # Before anything of ours is imported: what is imported may keep `os.fsync` for itself.

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
from tests.crash import channel as channel_module  # noqa: E402 - as above
from tests.crash.agent import Obedient, leaving_traces  # noqa: E402 - as above
from tests.crash.order import CHANNEL, Order  # noqa: E402 - as above
from tests.forks.rehearsal import rehearse  # noqa: E402 - as above

EXIT_CONFIG = 78
READING = 65_536


def settings(order: Order) -> Settings:
    return Settings.model_validate(
        {
            "gateway": {
                "data_dir": str(order.data_dir),
                "flush_interval": order.flush_interval,
                "shutdown_timeout": order.shutdown_timeout,
                "max_backlog_age": order.max_backlog_age,
                "max_parallel_turns": order.max_parallel_turns,
                "max_queued_per_session": 20_000,
                "max_queued": 20_000,
                "log_format": "json",
                "owners": [f"{CHANNEL}:owner"],
            },
            "http": {"port": 0},
            "channels": {"web": {"enabled": False}, "terminal": {"enabled": False}, **channels(order)},
        }
    )


def channels(order: Order) -> dict[str, Any]:  # Tables are of any shape.
    scripted = {
        "dm_policy": "open",
        "rate_limit": 0,
        "busy": order.busy,
        "options": {"socket": str(order.socket), "flavour": order.flavour},
    }
    return order.channels or {CHANNEL: scripted}


def tell_time(order: Order) -> datetime:
    off = float(order.clock.read_text()) if order.clock.exists() else 0.0
    return datetime.now(UTC) + timedelta(seconds=off)


async def serve(order: Order) -> None:
    """Run the gateway as the command does, with our model and tool in place of its own."""
    configured = settings(order)
    configure(configured.gateway.log_level, configured.gateway.log_format, frozenset(), sys.stdout)
    async with open_daemon(configured, listen=False, now=partial(tell_time, order)) as daemon:
        toolbox = Toolbox(leaving_traces(order.effects))
        daemon.agents.replace("main", lambda agent: replace(agent, provider=Obedient(order.gate), toolbox=toolbox))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, daemon.stop)
        await daemon.run(lambda: None)


def be_a_daemon(order: Order) -> int:
    """Be what was forked, to the end; returns the status to end with."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)
    os.umask(0o077)
    points.arm(order.die_at, order.fired)
    try:
        asyncio.run(serve(order))
    except CannotStart as refusal:
        print(refusal, file=sys.stderr)  # noqa: T201 - as the command does
        return EXIT_CONFIG
    except BaseException:  # noqa: BLE001 - it is the end of the process
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def offer_channel(folder: Path) -> None:
    """Have our channel found by its entry point, as an installed package would."""
    package = folder / "scripted-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted\nVersion: 1\n")
    (package / "entry_points.txt").write_text(
        f"[gatehouse.channels]\n{CHANNEL} = {channel_module.__name__}:open_channel\n"
    )
    sys.path.append(str(folder))


def start(order: Order) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = be_a_daemon(order)
        finally:
            os._exit(status)
    return pid


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def bury() -> None:
    """Tell of those that have ended: with their status, negative for the signal that has killed them."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            say("ended", ended[0], os.waitstatus_to_exitcode(ended[1]))


def main() -> int:
    woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking)
    with tempfile.TemporaryDirectory() as folder:
        offer_channel(Path(folder))
        say("ready")
        rest = b""
        while True:
            readable, _, _ = select.select([0, woken], [], [])
            if woken in readable:
                os.read(woken, READING)
            bury()
            if 0 in readable:
                if not (data := os.read(0, READING)):
                    return 0
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    say("started", start(Order.decode(line)))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    rehearse()
    sys.exit(main())

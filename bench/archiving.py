"""What archiving sessions into memory adds to the latency of turns, measured in alternation: on, off, on, off."""

import asyncio
import logging
import os
import statistics
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import structlog

from bench.gateway import round_trip_ms, running
from bench.model_server import served
from bench.table import Row
from config import Settings
from gateway.build import open_daemon
from gateway.contract import Address, PeerKind
from gateway.daemon import Daemon
from gateway.memory.queue import WAITING_FACTS
from gateway.sessions import SessionStatus, entries

SESSIONS = int(os.environ.get("BENCH_ARCHIVED", "1000"))
MESSAGES = 20
"""In each session."""
BLOCK_SECONDS = 1.0
LIMIT = 1.01
ON, OFF = True, False


def rows() -> list[Row]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with served() as url, TemporaryDirectory(prefix="bench-", dir=Path.home()) as folder:
        return list(asyncio.run(_measure(Path(folder), f"{url}/archivist")))


async def _measure(folder: Path, url: str) -> Iterator[Row]:
    settings = Settings.model_validate(
        {
            "gateway": {"data_dir": folder / "data", "log_level": "error"},
            "channels": {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {}},
            "providers": {"archivist": {"kind": "openai", "base_url": url}},
            "memory": {"model": "archivist/m", "tokens_per_day": 0},
        }
    )
    times: dict[bool, list[float]] = {ON: [], OFF: []}
    seconds: dict[bool, float] = {ON: 0.0, OFF: 0.0}
    cpu: dict[bool, float] = {ON: 0.0, OFF: 0.0}
    async with open_daemon(settings, listen=False) as daemon, running(daemon) as chat:
        _switch(daemon, is_on=False)
        await _fill(daemon)
        for _ in range(200):
            await round_trip_ms(chat)
        for is_on in cycle((ON, OFF)):
            _switch(daemon, is_on=is_on)
            began, used = perf_counter(), process_time()
            while perf_counter() - began < BLOCK_SECONDS:
                times[is_on].append(await round_trip_ms(chat))
                await asyncio.sleep(0.01)
            seconds[is_on] += perf_counter() - began
            cpu[is_on] += process_time() - used
            if is_on is OFF and not await daemon.spool.count_facts(WAITING_FACTS):
                break
        failures = daemon.metrics.archived["failed",]
    on, off = statistics.median(times[ON]), statistics.median(times[OFF])
    share = on / off
    load = f"load {os.getloadavg()[0]:.1f}"
    return iter(
        [
            Row(
                what=f"a turn while {SESSIONS:,} sessions of {MESSAGES} messages are archived",
                measured=f"p50 {on:.2f} ms, {(share - 1) * 100:+.1f} %, mean {statistics.mean(times[ON]):.2f} ms",
                baseline=f"p50 {off:.2f} ms, mean {statistics.mean(times[OFF]):.2f} ms; {load}",
                target="p50 < 1 % more",
                is_met=share < LIMIT,
            ),
            Row(
                what="the same: CPU for each session, and sessions in a minute",
                measured=f"{_added_cpu_ms(cpu, times):.1f} ms, {SESSIONS / seconds[ON] * 60:.0f}",
                baseline=f"{failures} failures",
                target="reported",
                is_met=not failures,
            ),
        ]
    )


def _added_cpu_ms(cpu: dict[bool, float], times: dict[bool, list[float]]) -> float:
    """Return the CPU time of one session: what the blocks with archiving used beyond their turns."""
    of_turn = cpu[OFF] / len(times[OFF])
    return (cpu[ON] - of_turn * len(times[ON])) * 1000 / SESSIONS


def _switch(daemon: Daemon, *, is_on: bool) -> None:
    session = daemon.live.settings.session.model_copy(update={"archive_to_memory": is_on})
    daemon.live.settings = daemon.live.settings.model_copy(update={"session": session})
    if is_on:
        daemon.memory_archiver.settings_changed()


async def _fill(daemon: Daemon) -> None:
    said = [
        (entries.Assistant if number % 2 else entries.User)(content=f"message {number}, and a few words about Lisbon")
        for number in range(MESSAGES)
    ]
    for number in range(SESSIONS):
        origin = Address(channel="loopback", kind=PeerKind.DIRECT, peer=f"bench-{number}")
        scope = f"agent:main:loopback:direct:bench-{number}"
        session = await daemon.sessions.start_new(scope, agent="main", origin=origin)
        await daemon.sessions.append(session.key, said)
        await daemon.sessions.set_status(session.key, SessionStatus.COMPLETED)

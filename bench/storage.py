"""Compares the storage engines: files, SQLite, and PostgreSQL on this machine with fsync on.

Each figure comes from a process of its own, and the engines take turns, so that noise affects all of them equally.
PostgreSQL must be installed: `make test` does that.
"""

import asyncio
import multiprocessing
import os
import resource
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import ParamSpec, TypeVar

import structlog

from bench.gateway import round_trip_ms, running, say
from bench.sessions import append_ms, fill, load_ms, scope, session_lines, write_session
from bench.table import Row
from config import Settings, StorageEngine
from gateway.build import open_daemon
from gateway.sessions import SessionFilter, SessionManager
from gateway.sessions.keys import session_key
from gateway.sessions.state import SessionState
from gateway.sessions.storage.interface import SessionStorage
from gateway.spool import Operation
from gateway.storage import open_storage
from tests.postgres.server import PostgresServer, PostgresTemplate, embedded_programs, system_programs

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
CHATS, WARM_UP, MESSAGES, ONE_BY_ONE = 50, 500, 3_000, 300
RATES = {StorageEngine.SQLITE: 0.8, StorageEngine.POSTGRESQL: 0.6}
"""The targets, as ratios to files."""
ADDED_P50_MS = 5.0
SHORT, LONG = 300, 1_000_000
"""Entries of a session. Both are longer than what a load reads at first, so both loads read the same number of rows."""
FEW, MANY = 100, 100_000
TIMES = 200
PAGE = 20
GROWTH_LIMIT = 1.5
ENTRIES_PER_COMMIT = SESSIONS_PER_COMMIT = 1_000
SERVER = {"fsync": "on", "shared_buffers": "128MB", "max_wal_size": "1GB"}
"""Settings of the server. The buffers and the WAL are PostgreSQL's defaults; tests use smaller ones."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Messages through a whole gateway."""

    rate: float
    cpu_ms: float
    """CPU time of the gateway for a message, without that of a database server."""
    p50_ms: float
    """A round trip in one chat."""


def rows() -> Iterator[Row]:
    with storage_server() as server:
        yield from _gateways(server)
        yield from _growth(server)


def _gateways(server: PostgresServer) -> Iterator[Row]:
    runs: dict[StorageEngine, list[Run]] = {engine: [] for engine in StorageEngine}
    for _ in range(ROUNDS):
        for engine, measured in runs.items():
            with _storage(engine, server) as settings:
                measured.append(_in_new_process(_converse, settings))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    files = runs[StorageEngine.FILES]
    rate, p50, cpu = (median(getattr(each, name) for each in files) for name in ("rate", "p50_ms", "cpu_ms"))
    baseline = f"files: {rate:.0f}/s, {cpu:.2f} ms of CPU, p50 {p50:.2f} ms; load {os.getloadavg()[0]:.1f}"
    for engine, target in RATES.items():
        ours = [median(getattr(each, name) for each in runs[engine]) for name in ("rate", "cpu_ms", "p50_ms")]
        # Each ratio is that of one round, since the load of the machine changes.
        ratio = median(each.rate / base.rate for each, base in zip(runs[engine], files, strict=True))
        added = median(each.p50_ms - base.p50_ms for each, base in zip(runs[engine], files, strict=True))
        yield Row(
            what=f"{engine}: whole gateway, {CHATS} chats",
            measured=f"{ours[0]:.0f}/s, {ratio:.2f}x, {ours[1]:.2f} ms of CPU; one chat: p50 {ours[2]:.2f} ms",
            baseline=baseline,
            target=f">= {target}x, p50 < {ADDED_P50_MS:g} ms more",
            is_met=ratio >= target and added < ADDED_P50_MS,
        )


def _converse(settings: Settings) -> Run:
    async def converse() -> Run:
        async with open_daemon(settings, listen=False) as daemon, running(daemon) as chat:
            await say(chat, WARM_UP, CHATS)
            began, cpu = perf_counter(), process_time()
            await say(chat, MESSAGES, CHATS)
            took, cpu = perf_counter() - began, process_time() - cpu
            trips = [await round_trip_ms(chat) for _ in range(ONE_BY_ONE)][ONE_BY_ONE // 10 :]
        return Run(rate=MESSAGES / took, cpu_ms=cpu * 1000 / MESSAGES, p50_ms=median(trips))

    return asyncio.run(converse())


def _growth(server: PostgresServer) -> Iterator[Row]:
    for engine in StorageEngine:
        with _storage(engine, server) as small, _storage(engine, server) as large:
            _in_new_process(_fill, small, FEW, SHORT)
            _in_new_process(_fill, large, MANY, LONG)
            _in_new_process(_start, large)  # With files, the first start writes the index.
            took, memory_mb = _in_new_process(_start, large)
            for what, (base, grown) in _in_new_process(_operations, small, large).items():
                yield Row(
                    what=f"{engine}: {what}, {LONG:,} entries, {MANY:,} scopes",
                    measured=f"{grown:.3f} ms, {grown / base:.2f}x",
                    baseline=f"{SHORT} entries, {FEW} scopes: {base:.3f} ms; load {os.getloadavg()[0]:.1f}",
                    target=f"<= {GROWTH_LIMIT}x",
                    is_met=grown <= GROWTH_LIMIT * base,
                )
            yield Row(
                what=f"{engine}: start with {MANY:,} sessions",
                measured=f"{took:.2f} s, {memory_mb:.0f} MB",
                baseline="",
                target="reported",
                is_met=True,
            )


def _operations(small: Settings, large: Settings) -> dict[str, tuple[float, float]]:
    """Return the first deciles of both sizes. The measurements alternate.

    On a busy machine most of them wait for a core, several times as long as they work. The median of such waits says
    nothing about the size, but the fastest tenth hardly waits.
    """
    measures: dict[str, Callable[[SessionManager], Awaitable[float]]] = {
        "load the window, cold": lambda manager: load_ms(manager, _LONG_KEY),
        "append one entry": lambda manager: append_ms(manager, _LONG_KEY),
        f"list {PAGE}": _list_ms,
    }

    async def measure() -> dict[str, tuple[float, float]]:
        async with _opened(small) as few, _opened(large) as many:
            deciles = {}
            for what, measured in measures.items():
                both = [(await measured(few), await measured(many)) for _ in range(TIMES)][TIMES // 10 :]
                base, grown = (quantiles(figures, n=10)[0] for figures in zip(*both, strict=True))
                deciles[what] = base, grown
            return deciles

    return asyncio.run(measure())


async def _list_ms(manager: SessionManager) -> float:
    began = perf_counter()
    page = await manager.directory.list(SessionFilter(), limit=PAGE)
    assert len(page.sessions) == PAGE
    return (perf_counter() - began) * 1000


def _start(settings: Settings) -> tuple[float, float]:
    """Return the seconds of a start, and the memory that it needs."""

    async def start() -> float:
        began = perf_counter()
        async with _opened(settings):
            return perf_counter() - began

    return asyncio.run(start()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


_LONG_KEY = session_key("agent:main:web:direct:long", 1)


def _fill(settings: Settings, scopes: int, entries: int) -> None:
    """Write one session for each scope, and another one with so many entries."""

    async def write_rows() -> None:
        async with open_storage(settings) as (spool, storage):
            for first in range(0, scopes, SESSIONS_PER_COMMIT):
                keys = [session_key(scope(at), 1) for at in range(first, min(first + SESSIONS_PER_COMMIT, scopes))]
                new = [operation for key in keys for operation in _append(storage, key, list(session_lines(key, 4)))]
                await spool.commit(*new)
            lines = session_lines(_LONG_KEY, entries)
            while some := list(islice(lines, ENTRIES_PER_COMMIT)):
                await spool.commit(*_append(storage, _LONG_KEY, some))
            storage.close()

    if settings.storage.engine is StorageEngine.FILES:
        folder = settings.gateway.data_dir / "sessions"
        fill(folder, scopes, per_scope=1)
        write_session(folder / "transcripts", _LONG_KEY, entries)
    else:
        asyncio.run(write_rows())


def _append(storage: SessionStorage, key: str, entries: list[tuple[bytes, SessionState]]) -> Sequence[Operation]:
    """Return the operations that append entries, each with the state after it."""
    last = entries[-1][1]
    lines = [line for line, _ in entries]
    return storage.append_operations(key, last.seq - len(lines) + 1, lines, lambda: last)


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[SessionManager]:
    async with open_storage(settings) as (spool, storage):
        manager = await SessionManager.open(storage, settings.session, lambda: datetime.now(UTC), journal=spool)
        try:
            await manager.recover()
            yield manager
        finally:
            await manager.close()


@contextmanager
def _storage(engine: StorageEngine, server: PostgresServer) -> Iterator[Settings]:
    """Yield the settings of a gateway with an empty storage."""
    with TemporaryDirectory() as folder:
        urls: dict[StorageEngine, Callable[[], str]] = {
            StorageEngine.FILES: lambda: "files:",
            StorageEngine.SQLITE: lambda: f"sqlite:///{folder}/gatehouse.db",
            StorageEngine.POSTGRESQL: server.new_database,
        }
        url = urls[engine]()
        yield Settings.model_validate(
            {
                "gateway": {"data_dir": folder},
                "storage": {"url": url},
                "channels": {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {}},
            }
        )
        if engine is StorageEngine.POSTGRESQL:
            server.drop_database(url)


@contextmanager
def storage_server() -> Iterator[PostgresServer]:
    programs = system_programs() or embedded_programs()
    if programs is None:
        sys.exit("PostgreSQL 15 or later is not installed.")
    with ExitStack() as stack:
        template = stack.enter_context(closing(PostgresTemplate(programs)))
        yield stack.enter_context(closing(PostgresServer(template, SERVER, on_disk=True)))


def _in_new_process(function: Callable[_P, _T], *arguments: _P.args, **_: _P.kwargs) -> _T:
    with multiprocessing.get_context("spawn").Pool(1, _quiet) as pool:
        return pool.apply(function, arguments)


def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))

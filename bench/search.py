"""Full-text search among a million messages, in each storage engine, in one scope and in many."""

import asyncio
import itertools
import os
import random
import sqlite3
import statistics
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, sleep

import psycopg

from bench.table import Row
from config import SessionSettings, Settings
from gateway.contract import Address, PeerKind
from gateway.sessions import SessionManager, SessionMeta
from gateway.sessions import entries as e
from gateway.spool import Spool
from gateway.storage import open_storage
from tests.polling import until
from tests.postgres.server import PostgresServer, PostgresTemplate, embedded_programs, system_programs

MESSAGES = int(os.environ.get("BENCH_SEARCH_MESSAGES", "1000000"))
SESSIONS = 40
"""The sessions of the big scope, which has half of the messages. The others are in scopes with one session each."""
MESSAGES_PER_SESSION = 25
"""Messages of a session of the many scopes."""
ROUNDS = 20
SYLLABLES = [first + second for first in "bdklmnrst" for second in "aeio"] + ["schl", "str", "ver", "ung", "keit", "an"]
BIG = "agent:main:bench:direct:big"
WANTED = {
    "a rare word": "quetzalcoatl",
    "a common word": "common",
    "two words": "common rarely",
    "Chinese": "数据库",
    "a part of a compound": "gesellschaftskapitän",
    "nothing, with a trigram that no message has": "verungkeitschlaus",
    "nothing, of trigrams that messages have": "verungkeitschlan",
}
MARKS = {
    3_001: "the quetzalcoatl",
    2_000: "only rarely",
    5_003: "我们昨天备份了数据库",
    7_001: "Donaudampfschifffahrtsgesellschaftskapitänsmütze",
}
"""What every so many messages contain."""


def rows() -> Iterator[Row]:
    for engine in os.environ.get("BENCH_SEARCH_ENGINES", "files sqlite postgresql").split():
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="bench-", dir=Path.home())))
            yield from asyncio.run(_measure(engine, folder, storage_url(engine, folder, stack)))


def storage_url(engine: str, folder: Path, stack: ExitStack) -> str:
    if engine == "files":
        return "files:"
    if engine == "sqlite":
        return f"sqlite://{folder}/gatehouse.db"
    programs = system_programs() or embedded_programs()
    if programs is None:
        raise SystemExit("PostgreSQL is not installed.")
    template = stack.enter_context(closing(PostgresTemplate(programs)))
    server = PostgresServer(template, {"shared_buffers": "256MB", "max_wal_size": "2GB"}, on_disk=True)
    return stack.enter_context(closing(server)).new_database()


@asynccontextmanager
async def opened(url: str, folder: Path) -> AsyncIterator[tuple[SessionManager, Spool]]:
    settings = Settings.model_validate({"gateway": {"data_dir": folder}, "storage": {"url": url}})
    async with open_storage(settings) as (spool, storage):
        manager = await SessionManager.open(storage, SessionSettings(), lambda: datetime.now(UTC), journal=spool)
        await manager.recover()
        yield manager, spool
        await manager.close()


async def _measure(engine: str, folder: Path, url: str) -> list[Row]:
    async with opened(url, folder) as (manager, _):
        per_message = await fill(manager)
        started = perf_counter()
        await manager.flush()
        if engine == "files":
            await until(partial(asyncio.to_thread, is_indexed, folder / "sessions"), within=3600)
        indexed = (perf_counter() - started) / MESSAGES
        many = [meta for scope in itertools.islice(manager.scopes(), 1_001) for meta in manager.list(scope)][-1_000:]
        found: list[Row] = []
        for place, sessions in (("one scope", manager.last_used(BIG)), ("1,000 scopes", many)):
            for name, words in WANTED.items():
                found.append(await _time(manager, sessions, words, f"{engine}: {name} in {place}"))
        size = await asyncio.to_thread(_index_size, engine, url, folder) / MESSAGES
        cost = f"{per_message * 1e6:.0f} us, index later {indexed * 1e6:.0f} us and {size:.0f} bytes"
        found.append(Row(what=f"{engine}: storing a message", measured=cost, baseline="", target="", is_met=True))
    return found


async def _time(manager: SessionManager, sessions: Sequence[SessionMeta], words: str, what: str) -> Row:
    times: list[float] = []
    hits, used = 0, process_time()
    for _ in range(ROUNDS):
        started = perf_counter()
        found = await manager.search(list(sessions), words)
        times.append((perf_counter() - started) * 1000)
        hits = len(found.hits)
    p50, p99 = statistics.median(times), max(times)
    used = (process_time() - used) * 1000 / ROUNDS
    measured = f"p50 {p50:.1f} ms, max {p99:.1f} ms, CPU {used:.1f} ms, {hits} hits"
    return Row(what=what, measured=measured, baseline="", target="p50 < 50 ms", is_met=p50 < 50)  # noqa: PLR2004 - the target


async def fill(manager: SessionManager) -> float:
    """Store the messages, and return the seconds that each took."""
    contents = texts()
    started = perf_counter()
    half = MESSAGES // 2
    origin = Address(channel="bench", kind=PeerKind.DIRECT, peer="x")
    for scopes, count in (([BIG] * SESSIONS, half // SESSIONS), (_small(half), MESSAGES_PER_SESSION)):
        for scope in scopes:
            session = await manager.start_new(scope, agent="main", origin=origin, copies=[])
            for start in range(0, count, 500):
                await manager.append(
                    session.key,
                    [e.User(content=text) for text in itertools.islice(contents, min(500, count - start))],
                )
    return (perf_counter() - started) / MESSAGES


def is_indexed(folder: Path) -> bool:
    written = sum(path.stat().st_size for path in (folder / "transcripts").iterdir())
    sleep(0.5)  # Between two looks, which take long themselves.
    with closing(sqlite3.connect(f"file:{folder}/search.db?mode=ro", uri=True, timeout=60)) as file:
        (indexed,) = file.execute("SELECT sum(size) FROM transcript").fetchone()
    return bool(indexed == written)


def _index_size(engine: str, url: str, folder: Path) -> int:
    """Return the bytes of the index, without the folded text in databases."""
    if engine == "files":
        return (folder / "sessions" / "search.db").stat().st_size
    if engine == "sqlite":
        with closing(sqlite3.connect(folder / "gatehouse.db")) as file:
            return int(file.execute("SELECT sum(length(block)) FROM search_text_data").fetchone()[0])
    with psycopg.connect(url) as server:
        found = server.execute("SELECT pg_relation_size('entry_search')").fetchone()
    return int(found[0]) if found else 0


def _small(count: int) -> list[str]:
    return [f"agent:main:bench:direct:{number}" for number in range(count // MESSAGES_PER_SESSION)]


def vocabulary(rng: random.Random) -> list[str]:
    """Return the words of the messages, the most frequent first."""
    return ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 5))) for _ in range(20_000)]


def texts() -> Iterator[str]:
    rng = random.Random(5)  # noqa: S311 - a benchmark
    words = vocabulary(rng)
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))
    for number in itertools.count(1):
        text = " ".join(rng.choices(words, cum_weights=weights, k=rng.randint(5, 60)))
        marks = [mark for every, mark in MARKS.items() if number % every == 0]
        yield " ".join([text, *marks, *(["common"] if number % 7 == 0 else [])])

"""Measures how listing sessions grows with their number: 20 of them, filtered by status and repository.

The list is measured over HTTP, from a `gatehouse run` for each number of sessions, and without HTTP in this process.
The sessions are in an index that is marked clean, as after a shutdown. They have no transcripts: a list reads none.
"""

import asyncio
import gc
import logging
import os
import random
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from uuid import UUID

import structlog
from aiohttp import ClientSession

from bench.daemon import Daemon, started
from bench.table import Row
from config import SessionSettings
from config.files import make_private_directory
from gateway.sessions import SessionFilter, SessionManager, SessionStatus, index
from gateway.sessions.directory import SessionDirectory
from gateway.sessions.index import EMPTY_SCOPE
from gateway.sessions.state import SessionState

FEW, MANY = 1_000, 100_000
TIMES = 500
LIMIT_MS = 10
GROWTH_LIMIT = 1.5
STEP_LIMIT_MS = 25
PAGE = 20
NOW = datetime.now(UTC)
REPOS = [f"repo-{number}" for number in range(4)]
REPO = REPOS[2]
CHANNELS = ["api", "openai", "web", "telegram"]
AGENTS = ["main", "coder", "tester"]
TOKENS = [f"token-{number}" for number in range(10)]
STATUSES = [*SessionStatus, *[SessionStatus.COMPLETED] * 6]
WANTED = SessionFilter(
    statuses=frozenset({SessionStatus.ACTIVE, SessionStatus.ERROR}),
    repos=frozenset({REPO}),
)
SETTINGS = "[api]\nrate_limit = 0\nidle_minutes = 0\n"

# Lists one page from an offset, and returns the total.
ListPage = Callable[[int], Awaitable[int]]


def rows() -> Iterator[Row]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield from asyncio.run(_measure())


async def _measure() -> list[Row]:
    return [*await _over_http(), *await _in_process()]


async def _over_http() -> list[Row]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ClientSession())
        listers = {}
        for size in (FEW, MANY):
            daemon = stack.enter_context(started(SETTINGS, partial(fill, size=size)))
            listers[size] = _http_lister(client, daemon)
        pages = await _alternate(listers, dict.fromkeys(listers, 0))
    return [_growth(f"GET /api/sessions: {PAGE} of {MANY:,} by status and repository", pages)]


async def _in_process() -> list[Row]:
    async with AsyncExitStack() as stack:
        managers = {size: await stack.enter_async_context(_opened(size)) for size in (FEW, MANY)}
        listers = {size: _lister(manager) for size, manager in managers.items()}
        first = {size: await _longest_step(list_page(0)) for size, list_page in listers.items()}
        totals = {size: await list_page(0) for size, list_page in listers.items()}
        pages = await _alternate(listers, dict.fromkeys(listers, 0))
        found_ms, _ = await _longest_step(_search(managers[MANY]))
        last = await _alternate(listers, {size: total - PAGE for size, total in totals.items()})
        memory = {size: await _memory_mb(manager) for size, manager in managers.items()}
    (few_ms, _), (many_ms, step_ms) = first[FEW], first[MANY]
    return [
        _growth("the same without HTTP", pages),
        Row(
            what=f"the same, the last {PAGE} of {totals[MANY]:,} that match",
            measured=f"p50 {last[MANY]:.3f} ms, {last[MANY] / last[FEW]:.2f}x",
            baseline=f"{FEW:,} sessions: p50 {last[FEW]:.3f} ms",
            target=f"< {LIMIT_MS} ms",
            is_met=last[MANY] < LIMIT_MS,
        ),
        Row(
            what=f"the first list after a start, {MANY:,} sessions",
            measured=f"{many_ms:.0f} ms, longest step {step_ms:.1f} ms of CPU",
            baseline=f"{FEW:,} sessions: {few_ms:.0f} ms",
            target=f"step < {STEP_LIMIT_MS} ms",
            is_met=step_ms < STEP_LIMIT_MS,
        ),
        Row(
            what=f"search {MANY:,} titles for two words",
            measured=f"{found_ms:.0f} ms",
            baseline="",
            target="reported",
            is_met=True,
        ),
        Row(
            what=f"memory of the directory, {MANY:,} sessions",
            measured=f"{memory[MANY]:.1f} MB, {memory[MANY] * 1e6 / MANY:.0f} bytes each",
            baseline=f"{FEW:,} sessions: {memory[FEW]:.2f} MB",
            target="reported",
            is_met=True,
        ),
    ]


def _http_lister(client: ClientSession, daemon: Daemon) -> ListPage:
    async def list_page(offset: int) -> int:
        query = {"status": "active,error", "repoId": REPO, "limit": str(PAGE), "offset": str(offset)}
        headers = {"Authorization": f"Bearer {daemon.token}"}
        async with client.get(f"{daemon.url}/api/sessions", params=query, headers=headers) as response:
            page = await response.json()
        assert len(page["sessions"]) == PAGE
        total: int = page["total"]
        return total

    return list_page


def _lister(manager: SessionManager) -> ListPage:
    async def list_page(offset: int) -> int:
        page = await manager.directory.list(WANTED, limit=PAGE, offset=offset)
        assert len(page.sessions) == PAGE
        return page.total

    return list_page


async def _alternate(listers: dict[int, ListPage], offsets: dict[int, int]) -> dict[int, float]:
    """Return the median milliseconds for each size. The measurements alternate, so that noise affects both equally."""
    took: dict[int, list[float]] = {size: [] for size in listers}
    for _ in range(TIMES):
        for size, list_page in listers.items():
            began = perf_counter()
            await list_page(offsets[size])
            took[size].append((perf_counter() - began) * 1000)
    return {size: median(values[10:]) for size, values in took.items()}


def _growth(what: str, took: dict[int, float]) -> Row:
    ratio = took[MANY] / took[FEW]
    return Row(
        what=what,
        measured=f"p50 {took[MANY]:.3f} ms, {ratio:.2f}x",
        baseline=f"{FEW:,} sessions: p50 {took[FEW]:.3f} ms",
        target=f"< {LIMIT_MS} ms, <= {GROWTH_LIMIT}x",
        is_met=took[MANY] < LIMIT_MS and ratio <= GROWTH_LIMIT,
    )


async def _search(manager: SessionManager) -> None:
    page = await manager.directory.list(SessionFilter(words=("REQUEST", "77")), limit=PAGE)
    assert page.total > PAGE


async def _longest_step(work: Awaitable[object]) -> tuple[float, float]:
    """Return the milliseconds that `work` takes, and the most CPU time for which it keeps the event loop."""
    task = asyncio.ensure_future(work)
    began, before = perf_counter(), thread_time()
    longest = 0.0
    while not task.done():
        await asyncio.sleep(0)
        now = thread_time()
        longest, before = max(longest, now - before), now
    await task
    return (perf_counter() - began) * 1000, longest * 1000


async def _memory_mb(manager: SessionManager) -> float:
    """Return the memory that another directory of the same sessions allocates and keeps."""
    gc.collect()
    tracemalloc.start()
    directory = SessionDirectory(manager._store, manager._reader)  # noqa: SLF001 - as the manager itself makes one.
    await directory.count("api", SessionStatus.ACTIVE)
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept / 1e6


@asynccontextmanager
async def _opened(size: int) -> AsyncIterator[SessionManager]:
    with TemporaryDirectory() as folder:
        fill(Path(folder), size)
        manager = await SessionManager.open(Path(folder) / "sessions", SessionSettings(), lambda: datetime.now(UTC))
        try:
            assert (await manager.recover()).sessions == size
            yield manager
        finally:
            await manager.close()


def fill(data: Path, size: int) -> None:
    """Write an index of sessions, each in its own scope and in no order of time, and mark it clean."""
    transcripts, path = data / "sessions/transcripts", data / "sessions/index.json"
    make_private_directory(transcripts)
    chance = random.Random(size)  # noqa: S311 - the data of a benchmark.
    sessions = (_session(chance, number) for number in range(size))
    scopes = ((key, EMPTY_SCOPE.with_session(key, state, is_active=True)) for key, state in sessions)
    index.write(path, ((key, index.encode_scope(scope)) for key, scope in scopes), (), os.fsync)
    index.mark_clean(path, transcripts, size)


def _session(chance: random.Random, number: int) -> tuple[str, SessionState]:
    created = NOW - timedelta(seconds=chance.randrange(30_000_000))
    agent, channel = chance.choice(AGENTS), chance.choice(CHANNELS)
    is_program = channel in CHANNELS[:2]
    identifier = str(UUID(int=chance.getrandbits(128), version=4))
    return f"agent:{agent}:{channel}:direct:{identifier if is_program else number}", SessionState(
        number=1,
        agent=agent,
        created_at=created,
        updated_at=NOW,
        last_accessed=NOW,
        seq=9,
        epoch=1,
        highest_number=1,
        title=f"Look at pull request {number} once more",
        messages=4,
        turns=2,
        status=chance.choice(STATUSES),
        id=identifier,
        channel=channel,
        repo=chance.choice(REPOS) if is_program else "",
        created_by=chance.choice(TOKENS) if is_program else "",
        size=4096,
    )

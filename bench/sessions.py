"""Measures how the cost of sessions grows: with their length, with the number of scopes, and at a start."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import msgspec
import structlog

from bench.table import Row
from config import SessionSettings
from config.files import make_private_directory
from gateway.contract import Address, PeerKind
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.keys import file_name, parse_key, session_key
from gateway.sessions.session import advance, fold
from gateway.sessions.state import SessionState
from gateway.sessions.storage.codec import encode

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ANN = Address(channel="web", kind=PeerKind.DIRECT, peer="ann")
SHORT, LONG = 100, 1_000_000
FEW, MANY = 100, 100_000
PER_SCOPE = 3
TIMES = 200
BATCH, BATCHES = 50, 400
GROWTH_LIMIT = 1.5
RATE_LIMIT = 20_000
REBUILD_LIMIT = 60
START_LIMIT, START_LIMIT_MB = 3, 400
STALL_LIMIT_MS = 25
CHECKPOINT_EVERY = 256


def rows() -> Iterator[Row]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield from asyncio.run(_age())
    yield asyncio.run(_throughput())
    with TemporaryDirectory() as folder:
        many = Path(folder) / "many"
        fill(many, MANY)
        yield _rebuild(many)
        yield _start(many)
        yield asyncio.run(_scopes(Path(folder) / "few", many))
        yield asyncio.run(_stall(many))


async def _age() -> list[Row]:
    """Append to, and load, a short and a long session in turns."""
    with TemporaryDirectory() as folder:
        directory = Path(folder) / "sessions"
        keys = {size: f"agent:main:web:direct:{size}" for size in (SHORT, LONG)}
        for size, key in keys.items():
            write_session(directory / "transcripts", key, size)
        async with _opened(directory) as manager:
            loads = await _alternate(keys, lambda key: load_ms(manager, key))
            appends = await _alternate(keys, lambda key: append_ms(manager, key))
    return [
        _growth("load the window, cold", loads, f"{SHORT} entries", f"{LONG:,} entries"),
        _growth("append one entry", appends, f"{SHORT} entries", f"{LONG:,} entries"),
    ]


async def _scopes(few: Path, many: Path) -> Row:
    fill(few, FEW)
    keys = {FEW: scope(1), MANY: scope(1)}
    async with _opened(few) as small, _opened(many) as large:
        managers = {FEW: small, MANY: large}
        appends = await _alternate(
            dict.fromkeys(managers, ""), lambda size: append_ms(managers[size], keys[size]), is_size=True
        )
    return _growth("append one entry", appends, f"{FEW} scopes", f"{MANY:,} scopes")


async def _alternate(
    keys: dict[int, str], measure: Callable[..., Awaitable[float]], *, is_size: bool = False
) -> dict[int, float]:
    """Return the median for each size. The measurements alternate, so that noise affects both equally."""
    took: dict[int, list[float]] = {size: [] for size in keys}
    for _ in range(TIMES):
        for size, key in keys.items():
            took[size].append(await measure(size if is_size else key))
    return {size: median(values[10:]) for size, values in took.items()}


def _growth(what: str, took: dict[int, float], small: str, large: str) -> Row:
    (_, base), (_, grown) = sorted(took.items())
    return Row(
        what=f"{what}, {large}",
        measured=f"{grown:.3f} ms, {grown / base:.2f}x",
        baseline=f"{small}: {base:.3f} ms",
        target=f"<= {GROWTH_LIMIT}x",
        is_met=grown <= GROWTH_LIMIT * base,
    )


async def load_ms(manager: SessionManager, key: str) -> float:
    manager._store.cache.drop(key)  # noqa: SLF001 - it measures a cold load.
    began = perf_counter()
    await manager.history(key)
    return (perf_counter() - began) * 1000


async def append_ms(manager: SessionManager, key: str) -> float:
    began = perf_counter()
    await manager.append(key, [e.User(content="How does it grow?")])
    return (perf_counter() - began) * 1000


async def _throughput() -> Row:
    with TemporaryDirectory() as folder:
        async with _opened(Path(folder) / "sessions") as manager:
            keys = [
                (await manager.start_new(f"agent:main:web:direct:{number}", agent="main", origin=ANN)).key
                for number in range(BATCH)
            ]
            began = perf_counter()
            for _ in range(BATCHES):
                await asyncio.gather(*(manager.append(key, [e.User(content="How fast?")]) for key in keys))
            rate = BATCH * BATCHES / (perf_counter() - began)
        bare = _bare_rate(Path(folder))
    return Row(
        what=f"append throughput, batches of {BATCH} sessions",
        measured=f"{rate:,.0f} entries/s",
        baseline=f"open, write, close: {bare:,.0f} lines/s",
        target=f"> {RATE_LIMIT:,} entries/s",
        is_met=rate > RATE_LIMIT,
    )


def _bare_rate(folder: Path) -> float:
    line = b'{"type":"user","seq":7,"ts":"2026-03-01T00:00:00Z","content":"How fast?"}\n'
    began = perf_counter()
    for number in range(BATCH * BATCHES):
        with (folder / str(number % BATCH)).open("ab", buffering=0) as file:
            file.write(line)
    return BATCH * BATCHES / (perf_counter() - began)


def _rebuild(directory: Path) -> Row:
    took, memory = _fresh_start(directory)
    return Row(
        what=f"start without index, {MANY:,} scopes, {MANY * PER_SCOPE:,} transcripts",
        measured=f"{took:.1f} s, {memory:.0f} MB",
        baseline=f"reading the files: {_read_all(directory / 'transcripts'):.1f} s",
        target=f"< {REBUILD_LIMIT} s",
        is_met=took < REBUILD_LIMIT,
    )


def _start(directory: Path) -> Row:
    took, memory = _fresh_start(directory)
    began = perf_counter()
    msgspec.json.decode((directory / "index.json").read_bytes())
    bare = perf_counter() - began
    return Row(
        what=f"start, clean index, {MANY:,} scopes, {MANY * PER_SCOPE:,} transcripts",
        measured=f"{took:.2f} s, {memory:.0f} MB",
        baseline=f"decoding index.json: {bare:.2f} s",
        target=f"< {START_LIMIT} s, < {START_LIMIT_MB} MB",
        is_met=took < START_LIMIT and memory < START_LIMIT_MB,
    )


def _read_all(folder: Path) -> float:
    began = perf_counter()
    with os.scandir(folder) as files:
        for file in files:
            with open(file.path, "rb") as data:  # noqa: PTH123 - the fastest way is the baseline.
                data.read()
    return perf_counter() - began


FRESH_START = """
import asyncio, logging, sys, time, structlog
from datetime import UTC, datetime
from pathlib import Path
from config import SessionSettings
from gateway.sessions import SessionManager
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
async def main():
    began = time.perf_counter()
    manager = await SessionManager.open(Path(sys.argv[1]), SessionSettings(), lambda: datetime.now(UTC))
    await manager.recover()
    took = time.perf_counter() - began
    status = Path("/proc/self/status").read_text()
    memory = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))) / 1024
    await manager.close()
    print(took, memory)
asyncio.run(main())
"""


def _fresh_start(directory: Path) -> tuple[float, float]:
    """Start and close a session manager in a new process. Returns the seconds of the start and the peak memory."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH_START, str(directory)], check=True, capture_output=True, text=True
    )
    took, memory = done.stdout.splitlines()[-1].split()
    return float(took), float(memory)


async def _stall(directory: Path) -> Row:
    """Measure the longest stall of the event loop while the whole index is written."""
    async with _opened(directory) as manager:
        quiet = await _longest_pause(asyncio.sleep(0.5))
        stalls = []
        for number in range(1, 6):
            for other in range(100):
                await manager.append(scope(number * 100 + other), [e.User(content="Anything?")])
            stalls.append(await _longest_pause(manager.flush()))
    return Row(
        what=f"event-loop stall while the index of {MANY:,} scopes is flushed",
        measured=f"{max(stalls):.1f} ms (median of {len(stalls)}: {median(stalls):.1f} ms)",
        baseline=f"idle: {quiet:.1f} ms",
        target=f"< {STALL_LIMIT_MS} ms",
        is_met=max(stalls) < STALL_LIMIT_MS,
    )


async def _longest_pause(work: Awaitable[object]) -> float:
    task = asyncio.ensure_future(work)
    longest, before = 0.0, perf_counter()
    while not task.done():
        await asyncio.sleep(0)
        now = perf_counter()
        longest, before = max(longest, now - before), now
    await task
    return longest * 1000


@asynccontextmanager
async def _opened(directory: Path) -> AsyncIterator[SessionManager]:
    manager = await SessionManager.open(directory, SessionSettings(), lambda: datetime.now(UTC))
    await manager.recover()
    try:
        yield manager
    finally:
        await manager.close()


def scope(number: int) -> str:
    return f"agent:main:telegram:direct:{number}"


def _header(key: str, scope: str, number: int) -> e.Header:
    return e.Header(
        seq=1,
        ts=NOW,
        version=e.FORMAT,
        id="0b8f6c1e-0000-4000-8000-000000000000",
        key=key,
        scope=scope,
        number=number,
        created=NOW,
        agent="main",
        origin=e.Origin(channel="telegram", account="default", chat_id="1", kind="direct"),
        epoch=number,
        highest_number=number,
    )


def _opening(key: str, scope: str, number: int) -> list[Entry]:
    return [_header(key, scope, number), e.Activated(seq=2, ts=NOW, key=key, epoch=number, highest_number=number)]


def fill(directory: Path, scopes: int, per_scope: int = PER_SCOPE) -> None:
    """Write transcripts with a question and an answer each, and no index. They are copies with different keys."""
    transcripts = directory / "transcripts"
    make_private_directory(transcripts)
    said = b"".join(encode(entry) for entry in _exchange(3))
    for number in range(1, per_scope + 1):
        marker = session_key("@@", number)
        opening = b"".join(map(encode, _opening(marker, "@@", number)))
        for at in range(scopes):
            data = opening.replace(b"@@", scope(at).encode()) + said
            _create(transcripts / file_name(session_key(scope(at), number)), data)


def _exchange(seq: int) -> list[Entry]:
    return [
        e.User(seq=seq, ts=NOW, turn=f"t{seq}", content="What is the capital of Portugal?", sender="1"),
        e.Assistant(seq=seq + 1, ts=NOW, turn=f"t{seq}", content="Lisbon.", model="offline"),
    ]


def _create(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(descriptor, data)
    os.close(descriptor)


def write_session(transcripts: Path, key: str, size: int) -> None:
    make_private_directory(transcripts)
    _create(transcripts / file_name(key), b"".join(line for line, _ in session_lines(key, size)))


def session_lines(key: str, size: int) -> Iterator[tuple[bytes, SessionState]]:
    """Yield the lines of a session as `SessionManager` would write them, checkpoints included, and the state after."""
    written = 0
    state: SessionState | None = None
    entries = _opening(key, *parse_key(key))
    while state is None or state.seq < size:
        for entry in entries:
            line = encode(entry)
            written += len(line)
            state = fold([entry]) if state is None else advance(state, entry)
            yield line, msgspec.structs.replace(state, size=written)
        assert state is not None
        entries = _exchange(state.seq + 1)
        if state.seq - state.checkpoint >= CHECKPOINT_EVERY:
            sized = msgspec.structs.replace(state, size=written)
            entries = [e.Checkpoint(seq=state.seq + 1, ts=NOW, key=key, state=sized)]

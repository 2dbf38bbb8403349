"""`recall` among a million messages, in each storage engine: half of the sessions of the scope are archived."""

import asyncio
import os
import random
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

from bench.search import BIG, SESSIONS, fill, is_indexed, opened, storage_url, vocabulary
from bench.table import Row
from config import Settings
from gateway.access.rules import Live
from gateway.memory.shared import SharedMemory
from gateway.memory.statement import Statement
from gateway.memory.store import MemoryStore, memory_folder
from gateway.turns.recall import Recall
from tests.polling import until

ROUNDS = 40
STATEMENTS = 2_000
TARGET_MS = 50


def rows() -> list[Row]:
    found: list[Row] = []
    for engine in os.environ.get("BENCH_SEARCH_ENGINES", "files sqlite postgresql").split():
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="bench-", dir=Path.home())))
            found += asyncio.run(_measure(engine, folder, storage_url(engine, folder, stack)))
    return found


async def _measure(engine: str, folder: Path, url: str) -> list[Row]:
    _remember(memory_folder(folder, BIG))
    async with opened(url, folder) as (manager, spool):
        await fill(manager)
        await manager.flush()
        if engine == "files":
            await until(partial(asyncio.to_thread, is_indexed, folder / "sessions"), within=3600)
        for session in manager.list(BIG)[SESSIONS // 2 :]:
            await manager.archive_session(session.key)
        await manager.flush()
        settings = Settings.model_validate({"gateway": {"data_dir": folder}, "storage": {"url": url}})
        recall = Recall(Live(settings), manager, SharedMemory(spool, lambda _folder: None))
        return [await _time(recall, query, f"{engine}: {what}") for what, query in _queries().items()]


def _queries() -> dict[str, str]:
    words = vocabulary(random.Random(5))  # noqa: S311 - a benchmark
    frequent: Sequence[str] = [word for word in words if len(word) > 2]  # noqa: PLR2004 - shorter words are not looked up.
    question = " ".join(frequent[:4])
    medium = [word for word in dict.fromkeys(words) if len(word) > 5][60:66]  # noqa: PLR2004 - none is part of most others.
    return {
        "a rare word": "quetzalcoatl",
        "a common word": "common",
        "a question: four frequent words and a rare one": f"{question} quetzalcoatl",
        "a question: four frequent words and two that are rarely together": f"{question} rarely 数据库",
        "a question about nothing that was said": f"{question} verungkeitschlaus",
        "a part of a compound": "gesellschaftskapitän",
        "a question: six words of medium frequency": " ".join(medium),
    }


async def _time(recall: Recall, query: str, what: str) -> Row:
    times: list[float] = []
    used, count = process_time(), 0
    for _ in range(ROUNDS):
        started = perf_counter()
        found = await recall.find(BIG, "", query)
        times.append((perf_counter() - started) * 1000)
        count = len(found.messages)
    used = (process_time() - used) * 1000 / ROUNDS
    p50, p95 = statistics.median(times), statistics.quantiles(times, n=20)[-1]
    measured = f"p50 {p50:.1f} ms, p95 {p95:.1f} ms, CPU {used:.1f} ms, {count} hits"
    return Row(what=what, measured=measured, baseline="", target=f"p50 < {TARGET_MS} ms", is_met=p50 < TARGET_MS)


def _remember(folder: Path) -> None:
    words = vocabulary(random.Random(6))  # noqa: S311 - a benchmark
    statements = [Statement(text=" ".join(words[at : at + 10]), noted="2026-03-01") for at in range(STATEMENTS)]
    MemoryStore(folder).add(statements, day="2026-03-01")

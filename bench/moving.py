"""Moving 100,000 sessions with 1,000,000 messages from files to PostgreSQL: time, and memory of the process."""

import os
import random
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import msgspec
import structlog

from bench.table import Row
from config import StorageSettings
from gateway.sessions import entries as e
from gateway.sessions import index
from gateway.sessions.entries import Entry
from gateway.sessions.keys import file_name
from gateway.sessions.recovery import group_by_scope
from gateway.sessions.session import fold
from gateway.sessions.storage.codec import stamp
from gateway.spool import schema
from gateway.storage_copy.copy import CopyProgress, copy_storage
from gateway.storage_copy.open import open_copy_source, open_copy_target
from tests.postgres.server import PostgresServer, PostgresTemplate, embedded_programs, system_programs

SESSIONS = int(os.environ.get("BENCH_MOVING_SESSIONS", "100000"))
TURNS = 5
"""Turns of each session, of two messages each."""
MAX_SECONDS = 300
MAX_MEGABYTES = 300
WORDS = 20_000
WORDS_PER_MESSAGE = 32
START = datetime(2026, 3, 1, tzinfo=UTC)
LETTERS = "abcdefghijklmnopqrstuvwxyzäöü"


def rows() -> Iterator[Row]:
    programs = system_programs() or embedded_programs()
    if programs is None:
        raise SystemExit("PostgreSQL is not installed.")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="bench-", dir=Path.home())))
        write_sessions(folder)
        template = stack.enter_context(closing(PostgresTemplate(programs)))
        server = stack.enter_context(closing(PostgresServer(template, {"max_wal_size": "2GB"}, on_disk=True)))
        # A process of its own, whose memory is that of the copy alone.
        command = [sys.executable, "-m", "bench.moving", str(folder), server.new_database()]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds, megabytes, *steps = done.stdout.split()
    yield Row(
        what=f"move {SESSIONS:,} sessions, {SESSIONS * TURNS * 2:,} messages, to PostgreSQL",
        measured=f"{float(seconds):.0f} s ({', '.join(steps)})",
        baseline="",
        target="under 300 s",
        is_met=float(seconds) < MAX_SECONDS,
    )
    yield Row(
        what="memory of the move",
        measured=f"{megabytes} MB",
        baseline="",
        target="under 300 MB",
        is_met=int(megabytes) < MAX_MEGABYTES,
    )


def write_sessions(folder: Path) -> None:
    """Write the files of a gateway: transcripts, an index, and a spool with an event for each session."""
    transcripts = folder / "sessions" / "transcripts"
    transcripts.mkdir(parents=True)
    chosen = random.Random(1)  # noqa: S311 - words of a test.
    words = ["".join(chosen.choices(LETTERS, k=chosen.randint(3, 11))) for _ in range(WORDS)]
    scopes: list[tuple[str, bytes]] = []
    for number in range(SESSIONS):
        scope = f"agent:main:bench:direct:u{number}"
        header = e.Header(
            version=e.FORMAT,
            id=f"{number:032x}",
            key=scope,
            scope=scope,
            number=1,
            created=START,
            agent="main",
            origin=None,
            epoch=1,
            highest_number=1,
        )
        entries: list[Entry] = [header, e.Activated(key=scope, epoch=1, highest_number=1)]
        for turn in map(str, range(TURNS)):
            entries += [
                e.User(content=" ".join(chosen.choices(words, k=WORDS_PER_MESSAGE)), turn=turn),
                e.Assistant(content=" ".join(chosen.choices(words, k=WORDS_PER_MESSAGE)), turn=turn),
                e.TurnEnd(outcome=e.TurnOutcome.ANSWERED, turn=turn),
            ]
        stamped = [stamp(each, seq=seq, now=START + timedelta(seconds=seq)) for seq, each in enumerate(entries, 1)]
        data = b"".join(line for _, line in stamped)
        (transcripts / file_name(scope)).write_bytes(data)
        state = msgspec.structs.replace(fold([each for each, _ in stamped]), size=len(data))
        grouped = group_by_scope({scope: state}, {}, set(), {}, START)
        scopes.append((scope, index.encode_scope(grouped[scope])))
    index.write(folder / "sessions" / "index.json", scopes, (), os.fsync)
    with closing(sqlite3.connect(folder / "spool.db", isolation_level=None)) as spool:
        schema.migrate(spool)
        spool.execute("BEGIN")
        events = (("bench", "default", f"e{number}", 1) for number in range(SESSIONS))
        spool.executemany("INSERT INTO seen (channel, account, event_id, at) VALUES (?, ?, ?, ?)", events)
        spool.execute("COMMIT")


def _copy(folder: Path, url: str) -> None:
    """Copy, and print the seconds, the memory in MB, and when each step ended."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    began = perf_counter()
    steps: dict[str, float] = {}

    def note(progress: CopyProgress) -> None:
        steps[progress.step] = perf_counter() - began

    with (
        TemporaryDirectory(prefix="bench-", dir=Path.home()) as target,
        open_copy_source(StorageSettings(), folder) as source,
        open_copy_target(StorageSettings(url=url), Path(target)) as copy,
    ):
        copy_storage(source, copy, on_progress=note)
    ends = [f"{step}:{seconds:.0f}s" for step, seconds in steps.items()]
    print(f"{perf_counter() - began:.1f}", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, *ends)


if __name__ == "__main__":
    _copy(Path(sys.argv[1]), sys.argv[2])

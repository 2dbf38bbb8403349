"""Importing 10,000 conversations of 20 messages and 5 tool calls each from OpenClaw, with `gatehouse import`."""

import json
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.table import Row
from tests.postgres.server import PostgresServer, PostgresTemplate, embedded_programs, system_programs

CONVERSATIONS = int(os.environ.get("BENCH_IMPORTED", "10000"))
PEOPLE = 1_000
TURNS = 10
CALLS = 5
MAX_SECONDS = 120
WORDS = "the train crosses the river at dawn and the umbrella is on the packing list again "


def rows() -> Iterator[Row]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="bench-", dir=Path.home())))
        _write_openclaw(folder)
        urls = {"files": "files:", "SQLite": f"sqlite://{folder}/data-sqlite/gatehouse.db"}
        if (programs := system_programs() or embedded_programs()) is not None:
            template = stack.enter_context(closing(PostgresTemplate(programs)))
            server = stack.enter_context(closing(PostgresServer(template, {"max_wal_size": "2GB"}, on_disk=True)))
            urls["PostgreSQL"] = server.new_database()
        for name, url in urls.items():
            seconds, cpu = _imported(folder, name, url, CONVERSATIONS)
            again, _ = _imported(folder, name, url, 0)
            yield Row(
                what=f"import {CONVERSATIONS:,} conversations, {CONVERSATIONS * TURNS * 2:,} messages, into {name}",
                measured=f"{seconds:.0f} s, {cpu:.0f} s of CPU; again, with nothing new: {again:.0f} s",
                baseline="",
                target=f"under {MAX_SECONDS} s",
                is_met=seconds < MAX_SECONDS,
            )


def _imported(folder: Path, name: str, url: str, wanted: int) -> tuple[float, float]:
    """Run the command, and return the seconds that it took and those of CPU, with the start of Python."""
    config = folder / f"{name}.toml"
    config.write_text(
        f'[gateway]\ndata_dir = "{folder}/data-{name.lower()}"\n[http]\nport = 0\n[storage]\nurl = "{url}"\n'
    )
    config.chmod(0o600)
    command = [str(Path(sys.executable).parent / "gatehouse"), "--config", str(config), "import", str(folder), "--json"]
    spent, began = _cpu(), perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds = perf_counter() - began
    (result,) = json.loads(done.stdout)
    assert sum(each["outcome"] == "imported" for each in result["sessions"]) == wanted
    return seconds, _cpu() - spent


def _cpu() -> float:
    """Return the seconds of CPU of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _write_openclaw(folder: Path) -> None:
    """Write a database as OpenClaw does, with the tables that an import reads."""
    path = folder / ".openclaw/agents/main/agent/openclaw-agent.sqlite"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE schema_meta (schema_version)")
        database.execute("INSERT INTO schema_meta VALUES (23)")
        database.execute("CREATE TABLE session_windows (session_id PRIMARY KEY, session_key, primary_conversation_id)")
        database.execute("CREATE TABLE conversations (conversation_id, channel, account_id, kind, peer_id, thread_id)")
        database.execute("CREATE TABLE transcript_events (session_id, seq, event_json, PRIMARY KEY (session_id, seq))")
        for person in range(PEOPLE):
            chat = (f"chat-{person}", "telegram", "default", "direct", str(person + 1), None)
            database.execute("INSERT INTO conversations VALUES (?, ?, ?, ?, ?, ?)", chat)
        for number in range(CONVERSATIONS):
            person = number % PEOPLE
            window = (f"session-{number}", f"agent:main:telegram:direct:{person + 1}", f"chat-{person}")
            database.execute("INSERT INTO session_windows VALUES (?, ?, ?)", window)
            events = [(f"session-{number}", seq, json.dumps(event)) for seq, event in enumerate(_events(number))]
            database.executemany("INSERT INTO transcript_events VALUES (?, ?, ?)", events)
        database.commit()


def _events(number: int) -> list[dict[str, object]]:
    at = 1_780_000_000_000 + number * 60_000
    events: list[dict[str, object]] = [{"type": "session", "version": 4, "id": f"session-{number}"}]

    def add(role: str, content: object, **more: object) -> None:
        parent = str(len(events) - 1) if len(events) > 1 else None
        said = {"role": role, "content": content, "timestamp": at + len(events), **more}
        events.append({"type": "message", "id": str(len(events)), "parentId": parent, "message": said})

    for turn in range(TURNS):
        add("user", f"{turn} {WORDS * 2}")
        if turn < CALLS:
            add(
                "assistant",
                [{"type": "toolCall", "id": f"call-{turn}", "name": "read", "arguments": {"path": "a.txt"}}],
            )
            add("toolResult", [{"type": "text", "text": WORDS * 6}], toolCallId=f"call-{turn}")
        add("assistant", [{"type": "text", "text": WORDS * 4}])
    return events

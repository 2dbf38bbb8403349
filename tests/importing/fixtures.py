"""The data of other gateways that tests import: how it is kept as text, and how a test gets a home folder with it."""

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

FIXTURES = Path(__file__).parent.parent / "fixtures/importing"
HOME = "/home/ada"
"""Stands for the home folder in which the programs ran."""
_TABLES = {
    "state.db": ("schema_version", "sessions", "messages"),
    "openclaw-agent.sqlite": (
        "schema_meta",
        "session_windows",
        "conversations",
        "session_conversations",
        "transcript_events",
    ),
    "openclaw.sqlite": ("channel_pairing_allow_entries",),
}
"""What is kept of a database: the tables that an import reads."""
_KEPT = {
    "nanobot": (
        ".nanobot/config.json",
        ".nanobot/sessions/*/*.jsonl",
        "workspace/*.md",
        "workspace/memory/MEMORY.md",
        "workspace/memory/history.jsonl",
        "workspace/cron/jobs.json",
    ),
    "hermes-agent": (".hermes/config.yaml", ".hermes/.env", ".hermes/memories/*.md", ".hermes/state.db"),
    "openclaw": (
        ".openclaw/openclaw.json",
        ".openclaw/agents/*/agent/openclaw-agent.sqlite",
        ".openclaw/state/openclaw.sqlite",
        "workspace/*.md",
        "workspace/memory/*.md",
    ),
}
_UNUSED = frozenset({"AGENTS.md", "HEARTBEAT.md", "TOOLS.md", "BOOTSTRAP.md", "IDENTITY.md"})
_CUT = frozenset({"system_prompt"})
"""Columns with long texts that no import reads."""


def keep(name: str, home: Path, target: Path) -> None:
    """Keep what an import reads of a home folder: as text, without secrets, ports and paths of the machine."""
    shutil.rmtree(target, ignore_errors=True)
    for pattern in _KEPT[name]:
        for path in sorted(home.glob(pattern)):
            if path.name in _UNUSED:
                continue
            kept = target / path.relative_to(home)
            kept.parent.mkdir(parents=True, exist_ok=True)
            if path.name in _TABLES:
                kept = kept.with_name(f"{kept.name}.sql")
                text = "\n".join(_dump(path)) + "\n"
            else:
                text = path.read_text()
            kept.write_text(_neutral(text, home))


def _neutral(text: str, home: Path) -> str:
    text = text.replace(str(home), HOME).replace(
        "123456:bench-AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsa", "123456:made-up-token"
    )
    return re.sub(r"127\.0\.0\.1:\d{4,5}", "127.0.0.1:8000", text)


def _dump(path: Path) -> Iterator[str]:
    """Yield SQL that makes the tables again, with their columns and rows, and without their constraints."""
    with closing(sqlite3.connect(path)) as database:
        for table in _TABLES[path.name]:
            names = [str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")]
            yield f"CREATE TABLE {table} ({', '.join(names)});"
            columns = ", ".join(f"quote({'NULL' if name in _CUT else name})" for name in names)
            for row in database.execute(f"SELECT {columns} FROM {table}"):  # noqa: S608 - names of ours.
                yield f"INSERT INTO {table} VALUES ({', '.join(row)});"  # noqa: S608 - as above.


def home_with(name: str, home: Path) -> Path:
    """Make a home folder with the data of a gateway, and return it. `name` is that of a folder of the fixtures."""
    shutil.copytree(FIXTURES / name, home, dirs_exist_ok=True)
    for path in sorted(home.rglob("*.sql")):
        with closing(sqlite3.connect(path.with_suffix(""))) as database:
            database.executescript(path.read_text())
        path.unlink()
    for path in sorted(home.rglob("*")):
        if path.suffix in {".json", ".yaml"}:
            path.write_text(path.read_text().replace(HOME, str(home)))
    return home

"""The views of sessions and messages, as people see them with `psql` and `sqlite3`."""

import json
import re
import sqlite3
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import StorageEngine, StorageSettings
from gateway.api.message_mapping import all_messages
from gateway.database import migrate
from gateway.sessions import TurnOutcome, entries
from gateway.sessions.entries import Entry
from tests.database.harness import SESSION, START, Sql, connected, microseconds, store_entries, store_session

KEY = "telegram:42"
PROMPT_ID = "0b8ff4ad-5f0b-4e94-a48d-1e3f3dbb23c5"


@pytest.fixture(autouse=True)
def migrated(storage: StorageSettings) -> None:
    migrate.upgrade(storage)


def user(text: str, **fields: Any) -> entries.User:  # noqa: ANN401 - those of the entry.
    return entries.User(turn="t1", content=text, **fields)


def tool_use(call: str, **fields: Any) -> entries.ToolUse:  # noqa: ANN401 - as above.
    return entries.ToolUse(turn="t1", tool_use_id=call, name="read", input={"path": "a"}, **fields)


TURN = (
    user(
        'Read "a" \\ \x00 \\u0000 \n\N{SNOWMAN}\U0001f600',
        event_id="telegram-7",
        attachments=(
            entries.Attached(name="a.png", kind="image", media_type="image/png", size=5, ref="x/y"),
            entries.Attached(name="b", kind="file"),
        ),
    ),
    user("And this.", event_id=PROMPT_ID),
    entries.Assistant(turn="t1", content="I will.", usage=entries.Usage(input_tokens=3)),
    tool_use("c1", title="Read a"),
    entries.Approval(turn="t1", approval_id="q1", tool_use_id="c1", question="May I?", files={"decision": "x"}),
    entries.Approval(turn="t1", approval_id="q1", tool_use_id="c1", decision="approved"),
    entries.ToolUpdate(turn="t1", tool_use_id="c1", name="edit", input={"path": "b"}, title="Edit b"),
    entries.ToolResult(turn="t1", tool_use_id="c1", output="done\x00", diffs=(entries.FileDiff(path="b", diff="+1"),)),
    tool_use("c2"),
    entries.ToolResult(turn="t1", tool_use_id="c2", output="no", is_error=True),
    entries.Plan(turn="t1", steps=(entries.PlanStep(content="One", status="done"),)),
    entries.SentFile(turn="t1", name="out.txt", media_type="text/plain", size=3, ref="r"),
    entries.Assistant(turn="t1", content=""),
    entries.Assistant(turn="t1", content='Done, with "" in it.'),
    entries.TurnEnd(turn="t1", outcome=TurnOutcome.ANSWERED),
    entries.User(turn="t2", content="Next."),
    tool_use("c1"),  # Some models use the same ids in each turn.
    entries.Approval(turn="t2", approval_id="q2", question="And now?"),
    entries.Assistant(turn="t2", content="One."),
    entries.Assistant(turn="t2", content="Two, cut"),
    entries.System(turn="t2", content="It was stopped.", is_failure=True),
    entries.TurnEnd(turn="t2", outcome=TurnOutcome.STOPPED),
    entries.Undo(turn="t3", undone="t2", first=16, messages=3),
    entries.Clear(),
    entries.Title(value="A title"),
    entries.System(content="A note."),
    entries.User(turn="t4", content="Still running."),
    entries.Approval(turn="t4", approval_id="q3", question="Open?"),
    tool_use("c3"),
    entries.Assistant(turn="t4", content="Not at its end"),
)


async def api_messages(stored: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return the messages that the API shows."""

    async def source() -> AsyncIterator[Entry]:
        for entry in stored:
            yield entry

    return [json.loads(msgspec.json.encode(each)) async for each in all_messages(SESSION, source())]


def view_messages(sql: Sql) -> list[dict[str, Any]]:
    columns = ("id", "sessionId", "role", "content", "timestamp", "seq")
    rows = [dict(zip(columns, row, strict=True)) for row in sql("SELECT * FROM AgentMessage ORDER BY seq")]
    for row in rows:
        row["content"] = json.loads(row["content"]) if isinstance(row["content"], str) else row["content"]
        if isinstance(row["timestamp"], str):
            row["timestamp"] = datetime.fromisoformat(row["timestamp"])
    return rows


def as_in_a_view(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a message of the API without what a view lacks: addresses, and durations of tool calls."""
    for file in (*content.get("attachments", ()), *([content["file"]] if "file" in content else [])):
        file.pop("url", None)
    content.pop("seconds", None)
    return content


async def test_messages_are_those_of_the_api(storage: StorageSettings) -> None:
    with connected(storage) as sql:
        store_session(sql, KEY)
        stored = store_entries(sql, KEY, TURN)
        shown = view_messages(sql)
    expected = await api_messages(stored)
    by_time = sorted(expected, key=lambda each: str(each["timestamp"]))
    assert [row["role"] for row in shown] == [each["role"] for each in by_time]
    for row, each in zip(shown, by_time, strict=True):
        wanted = as_in_a_view(each["content"])
        if storage.engine is StorageEngine.POSTGRESQL:  # It cannot show U+0000.
            wanted = json.loads(
                json.dumps(wanted).replace(r" \u0000", r" \ufffd").replace(r"done\u0000", r"done\ufffd")
            )
        assert row["content"] == wanted
        assert row["timestamp"] == datetime.fromisoformat(str(each["timestamp"]))
    assert {str(row["sessionId"]) for row in shown} == {SESSION}


def test_each_message_has_an_id_of_its_own(storage: StorageSettings) -> None:
    with connected(storage) as sql:
        for key, session_id in ((KEY, SESSION), (f"{KEY}#2", str(uuid4()))):
            store_session(sql, key, session_id=session_id)
            store_entries(sql, key, [user("One."), user("Two."), user("Three.")])
        store_entries(sql, KEY, [user("Prompt", event_id=PROMPT_ID)], first_seq=0x1234)
        ids = [UUID(str(row[0])) for row in sql("SELECT id FROM AgentMessage")]
    assert len(ids) == len(set(ids)) == 7
    assert UUID(PROMPT_ID) in ids
    assert UUID("5c1dd4f6-0f3b-8d5e-9a57-000000000002") in ids


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=5))
def test_any_text_is_shown(storage: StorageSettings, texts: list[str]) -> None:
    with connected(storage) as sql:
        sql("BEGIN")
        store_session(sql, KEY)
        store_entries(sql, KEY, [user(text) for text in texts])
        shown = [row["content"]["text"] for row in view_messages(sql)]
        sql("ROLLBACK")
    if storage.engine is StorageEngine.POSTGRESQL:
        texts = [text.replace("\0", "\ufffd") for text in texts]
    assert shown == texts


def test_a_damaged_line_breaks_no_view(storage: StorageSettings) -> None:
    with connected(storage) as sql:
        store_session(sql, KEY)
        store_entries(sql, KEY, [user("Before."), tool_use("c1")])
        sql(
            "INSERT INTO entry (session, seq, type, at_us, line) VALUES (?, 3, 'damaged', 0, '{\"type\":\"tool_res')",
            KEY,
        )
        store_entries(sql, KEY, [entries.ToolResult(turn="t1", tool_use_id="c1", output="x")], first_seq=4)
        assert [row["content"].get("result", "") for row in view_messages(sql)] == ["", "x"]


def test_sessions_are_shown_with_times_and_repos(storage: StorageSettings) -> None:
    with connected(storage) as sql:
        store_session(sql, KEY, repo="website", archived_us=0)
        query = "SELECT id, repoId, status, createdAt, updatedAt, archivedAt FROM AgentSession"
        ((id_, repo, status, created, updated, archived),) = sql(query)
        named = "SELECT s.id FROM agentsession s JOIN REPO r ON r.id = s.REPOID WHERE r.name = 'Website'"
        assert sql(named) == [(id_,)]
    if storage.engine is StorageEngine.SQLITE:
        assert created == "2026-11-18T09:30:00.123456Z"
        created, updated, archived = (datetime.fromisoformat(each) for each in (created, updated, archived))
    assert (str(id_), repo, status) == (SESSION, "website", "active")
    assert (created, updated) == (START, START + timedelta(hours=1))
    assert archived == datetime(1970, 1, 1, tzinfo=UTC)


def test_foreign_keys_hold(storage: StorageSettings) -> None:
    with connected(storage) as sql:
        refused: tuple[type[Exception], ...] = (psycopg.IntegrityError, sqlite3.IntegrityError)
        with pytest.raises(refused):
            sql("INSERT INTO entry (session, seq, type, at_us, line) VALUES ('nobody', 1, 'user', 0, '{}')")
        store_session(sql, KEY, repo="website")
        store_entries(sql, KEY, [user("Hello.")])
        with pytest.raises(refused):
            sql("DELETE FROM repo")
        sql("UPDATE session SET key = ?", "telegram:43")
        assert sql("SELECT session FROM entry") == [("telegram:43",)]
        sql("DELETE FROM session")
        assert sql("SELECT count(*) FROM entry") == [(0,)]


def documented_queries(program: str) -> list[str]:
    """Return the examples of docs/storage.md that are for `program`, or for both."""
    text = (Path(__file__).parents[2] / "docs" / "storage.md").read_text(encoding="utf-8")
    queries = []
    for block in re.findall(r"```sql\n(.*?)```", text, re.DOTALL):
        for statement in block.split(";\n"):
            named = re.search(r"-- (psql|sqlite3)", statement)
            only_for = named[1] if named else ""
            if "SELECT " in statement and "GRANT" not in statement and only_for in {"", program}:
                queries.append(statement)
    return queries


def test_the_examples_of_the_documentation_work(storage: StorageSettings) -> None:
    with connected(storage) as sql:
        queries = documented_queries("sqlite3" if sql.is_sqlite else "psql")
        assert len(queries) == 3
        store_session(sql, KEY)
        store_entries(sql, KEY, TURN)
        for query in queries:
            sql(query)


INDEXED = {
    "SELECT * FROM AgentSession WHERE id = '{id}'": "session_id",
    "SELECT * FROM AgentSession WHERE repoId = 'r7'": "session_of_repo",
    "SELECT * FROM AgentSession WHERE status = 'error'": "session_status",
    "SELECT * FROM AgentSession WHERE createdAt < '2026-11-18T09:30:20Z'": "session_created",
    "SELECT * FROM AgentSession ORDER BY updatedAt DESC LIMIT 20": "session_updated",
    "SELECT * FROM AgentMessage WHERE sessionId = '{id}' ORDER BY seq": "session_id",
    "SELECT * FROM AgentMessage WHERE timestamp < '2026-11-18T09:30:20Z'": "entry_timestamp",
}


def test_queries_use_indexes(storage: StorageSettings) -> None:
    ids = [str(uuid4()) for _ in range(500)]
    with connected(storage) as sql:
        sql("BEGIN")
        for number, session_id in enumerate(ids):
            key, moment = f"{KEY}#{number}", microseconds(START + timedelta(seconds=number))
            status = "error" if number == 7 else "active"
            times = {"created_us": moment, "updated_us": moment}
            store_session(sql, key, session_id=session_id, repo=f"r{number // 5}", status=status, **times)
            line = f'{{"type":"user","seq":1,"content":"{number}"}}'
            sql("INSERT INTO entry (session, seq, type, at_us, line) VALUES (?, 1, 'user', ?, ?)", key, moment, line)
        sql("COMMIT")
        sql("ANALYZE")
        explain = "EXPLAIN QUERY PLAN" if sql.is_sqlite else "EXPLAIN"
        for query, index in INDEXED.items():
            statement = query.format(id=ids[7])
            plan = "\n".join(str(row[-1]) for row in sql(f"{explain} {statement}"))
            assert index in plan
            assert "Seq Scan on entry" not in plan
            assert sql(statement)

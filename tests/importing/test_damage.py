"""Damaged, foreign, newer and huge data of other gateways: it is refused with a sentence, and never half imported."""

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import Settings
from gateway.errors import Refused
from gateway.importing.destination import find_destinations
from gateway.importing.gateways import open_gateway
from gateway.importing.memory_files import statements
from gateway.importing.messages import MAX_TEXT, add_messages
from gateway.importing.source_files import MAX_BYTES, MAX_LINE
from gateway.importing.transcript import to_transcript
from gateway.importing.values import Conversation, LeftOut, UnknownFormat
from gateway.memory.statement import Statement, parse, render
from gateway.sessions.history import to_messages
from gateway.sessions.storage.codec import decode
from tests.importing.fixtures import home_with
from tests.importing.test_gateways import RECORDED, picoclaw

NOW = datetime(2026, 11, 20, tzinfo=UTC)
MAKERS = {"openclaw-2026.9.6": "openclaw", "nanobot-0.3.5": "nanobot", "hermes-agent-0.19.0": "hermes", "picoclaw": ""}


@pytest.fixture(scope="module", params=[*RECORDED, "picoclaw"])
def contents(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of a gateway by their paths."""
    home = tmp_path_factory.mktemp("home")
    if request.param == "picoclaw":
        picoclaw(home)
    else:
        home_with(request.param, home)
    return {str(path.relative_to(home)): path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()}


def whole_import(home: Path) -> list[Conversation | LeftOut]:
    """Read everything and write transcripts, as an import does. Raises `UnknownFormat` at most."""
    gateway = open_gateway(home)
    found = list(gateway.conversations())
    for each in found:
        if isinstance(each, Conversation):
            try:
                destination, *_ = find_destinations(Settings(), each, "root")
            except Refused:
                continue
            entries = [decode(line) for line in to_transcript(each, destination, 1, NOW, epoch=1)]
            to_messages(entries)
    return found


WHOLE = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@WHOLE
@given(data=st.data())
def test_damaged_files_are_read_or_refused(
    contents: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    home = tmp_path_factory.mktemp("damaged")
    chosen = data.draw(st.sampled_from(sorted(contents)))
    for name, content in contents.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.draw(damaged(content)) if name == chosen else content)
    before = snapshot(home)
    with suppress(UnknownFormat):
        whole_import(home)
    assert snapshot(home) == before


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """Return what may become of a file: an end that is missing, other bytes somewhere, or something else entirely."""
    places = st.integers(0, max(0, len(content) - 1))
    return st.one_of(
        st.builds(lambda at: content[:at], places),
        st.builds(
            lambda at, new: content[:at] + new + content[at + len(new) :], places, st.binary(min_size=1, max_size=40)
        ),
        st.binary(max_size=200),
        st.sampled_from(
            [b"", b"null", b"[]", b"[" * 100_000, b'{"messages": {}}', b"\xff\xfe\x00", b"42", b"- a: [\n"]
        ),
    )


def snapshot(home: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file()}


NAMES = ["type", "role", "content", "timestamp", "id", "parentId", "message", "text", "tool_calls", "function", "name"]
NAMES += ["arguments", "tool_call_id", "toolCallId", "key", "scope", "values", "chat", "metadata", "_type"]
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(-(2**62), 2**62) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner | st.sampled_from(["user", "assistant", "tool", "toolResult", "message", "reset", "leaf", "text"]),
            max_size=5,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(JSON, max_size=6))
def test_any_messages_become_a_history_that_providers_accept(messages: list[object]) -> None:
    found = Conversation(maker="test", key="k", id="", created=NOW, scope="agent:main:main")
    add_messages(found, messages)
    (destination,) = find_destinations(Settings(), found, "root")
    entries = [decode(line) for line in to_transcript(found, destination, 1, NOW, epoch=1)]
    to_messages(entries)


@pytest.mark.parametrize("kind", ["openclaw", "nanobot", "picoclaw"])
@settings(max_examples=40, deadline=None)
@given(lines=st.lists(JSON, max_size=6))
def test_lines_with_any_json_are_read_or_refused(
    kind: str, tmp_path_factory: pytest.TempPathFactory, lines: list[object]
) -> None:
    home = tmp_path_factory.mktemp(kind)
    path = {
        "openclaw": home / ".openclaw/agents/main/sessions/a.jsonl",
        "nanobot": home / ".nanobot/sessions/0a/a.jsonl",
        "picoclaw": home / ".picoclaw/workspace/sessions/telegram_1.jsonl",
    }[kind]
    path.parent.mkdir(parents=True)
    (home / f".{kind}" / ("openclaw.json" if kind == "openclaw" else "config.json")).write_text("{}")
    header = {"type": "session", "id": "a"} if kind == "openclaw" else {"_type": "metadata", "key": "telegram:1"}
    path.write_text("".join(f"{json.dumps(each)}\n" for each in [header, *lines]))
    whole_import(home)


@given(st.text(max_size=300))
def test_any_text_becomes_statements_that_a_memory_file_keeps(text: str) -> None:
    found = [each for each in statements(text) if each.strip()]
    assert all("\n" not in each for each in found)
    render(parse(render([Statement(text=each) for each in found])))


def change(path: Path, *commands: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        for command in commands:
            database.execute(command)
        database.commit()


NEWER = {
    "hermes-agent-0.19.0": (".hermes/state.db", "UPDATE schema_version SET version = 99", "messages", "tool_calls"),
    "openclaw-2026.9.6": (
        ".openclaw/agents/main/agent/openclaw-agent.sqlite",
        "UPDATE schema_meta SET schema_version = 99",
        "transcript_events",
        "event_json",
    ),
}


@pytest.mark.parametrize("name", NEWER)
def test_a_newer_database_is_read_with_a_note_and_refused_if_it_lacks_something(name: str, tmp_path: Path) -> None:
    home = home_with(name, tmp_path)
    file, command, table, column = NEWER[name]
    change(home / file, command)
    gateway = open_gateway(home)
    assert len(list(gateway.conversations())) == 6
    assert any("has format 99" in note for note in gateway.settings.notes)
    change(home / file, f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
    assert f"it lacks {column} in the table {table}" in refusal(home)
    change(home / file, f"DROP TABLE {table}")
    assert f"it lacks the table {table}" in refusal(home)


def refusal(home: Path) -> str:
    """Return why nothing can be imported."""
    try:
        (found,) = open_gateway(home).conversations()
    except UnknownFormat as error:
        return str(error)
    assert isinstance(found, LeftOut)
    assert found.is_damaged
    return found.why


def test_a_newer_scope_of_picoclaw_is_refused(tmp_path: Path) -> None:
    meta = picoclaw(tmp_path) / "workspace/sessions/sk_v1_0a.meta.json"
    meta.write_text(meta.read_text().replace('"version": 1', '"version": 2'))
    whys = [each.why for each in open_gateway(tmp_path).conversations() if isinstance(each, LeftOut)]
    assert "its scope has format 2, and 1 is the newest known one" in whys


def sessions_of_nanobot(home: Path) -> Path:
    return next((home / ".nanobot/sessions").glob("*/dGVsZWdyYW06NDI.jsonl"))


def test_a_huge_line_is_left_out_and_a_long_text_is_cut(tmp_path: Path) -> None:
    home = home_with("nanobot-0.3.5", tmp_path)
    path = sessions_of_nanobot(home)
    long = json.dumps({"role": "user", "content": "x" * (MAX_TEXT + 5)})
    with path.open("a") as file:
        file.write(f"{long}\n")
        file.write(f'{{"role": "user", "content": "{"y" * MAX_LINE}"}}\n')
        file.write('{"role": "user", "content": "the end"}\n')
    found = next(each for each in open_gateway(home).conversations() if getattr(each, "key", "") == "telegram:42")
    assert isinstance(found, Conversation)
    assert found.left_out == {"damaged message": 1, "end of a very long text": 1}
    contents = [getattr(step, "content", "") for step in found.steps]
    assert len(contents[-2]) == MAX_TEXT
    assert contents[-1] == "the end"


def test_a_compressed_event_that_is_huge_is_left_out(tmp_path: Path) -> None:
    zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    home = home_with("openclaw-2026.9.6", tmp_path)
    with closing(sqlite3.connect(home / ".openclaw/agents/main/agent/openclaw-agent.sqlite")) as database:
        huge = zstd.compress(b'"' + b" " * MAX_LINE + b'"')
        statement = "INSERT INTO transcript_events (session_id, seq, event_zstd) SELECT session_id, 9999, ? "
        database.execute(statement + "FROM session_windows", (huge,))
        database.commit()
    found = [each for each in open_gateway(home).conversations() if isinstance(each, Conversation)]
    assert len(found) == 6
    assert sum(each.left_out["damaged event"] for each in found) >= 5


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    home = home_with("nanobot-0.3.5", tmp_path)
    with (home / ".nanobot/config.json").open("ab") as file:
        file.truncate(MAX_BYTES + 1)
    (why,) = [each.why for each in open_gateway(home).left_out if each.is_damaged]
    assert why == "config.json has 250 MB, and more than 250 MB are not read"


@pytest.mark.parametrize("workspace", [f"/{'a' * 5_000}", "~an-unknown-user/workspace", "workspace", "", "\0"])
@pytest.mark.parametrize("name", ["openclaw-2026.9.6", "nanobot-0.3.5", "picoclaw"])
def test_a_workspace_of_another_machine_is_looked_for_beside_the_settings(
    name: str, workspace: str, tmp_path: Path
) -> None:
    home = picoclaw(tmp_path).parent if name == "picoclaw" else home_with(name, tmp_path)
    (config,) = [*home.glob(".*/config.json"), *home.glob(".*/openclaw.json")]
    values = json.loads(config.read_text())
    values["agents"]["defaults"]["workspace"] = workspace
    config.write_text(json.dumps(values))
    assert open_gateway(home).memory


def test_a_path_that_cannot_be_looked_at_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat):
        open_gateway(tmp_path / ("a" * 5_000))


def test_a_column_with_a_damaged_name_makes_the_database_damaged(tmp_path: Path) -> None:
    home = home_with("openclaw-2026.9.6", tmp_path)
    path = home / ".openclaw/agents/main/agent/openclaw-agent.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE session_windows ADD COLUMN to_be_damaged")
        database.commit()
    path.write_bytes(path.read_bytes().replace(b"to_be_damaged", b"\x80o_be_damaged"))
    damaged = [each for each in open_gateway(home).conversations() if isinstance(each, LeftOut) and each.is_damaged]
    assert [each.what for each in damaged] == [str(path)]


def test_pipes_and_folders_in_the_place_of_files_are_not_waited_for(tmp_path: Path) -> None:
    home = home_with("nanobot-0.3.5", tmp_path)
    path = sessions_of_nanobot(home)
    path.unlink()
    os.mkfifo(path)
    found = [each for each in open_gateway(home).conversations() if isinstance(each, LeftOut)]
    assert [each.why for each in found] == [f"{path.name} is not a file"]


def test_files_that_a_crash_has_torn_lose_only_their_last_line(tmp_path: Path) -> None:
    home = home_with("nanobot-0.3.5", tmp_path)
    path = sessions_of_nanobot(home)
    path.write_bytes(path.read_bytes()[:-40])
    found = next(each for each in open_gateway(home).conversations() if getattr(each, "key", "") == "telegram:42")
    assert isinstance(found, Conversation)
    assert found.left_out == {"damaged message": 1}
    assert found.messages == 5


def test_a_database_with_a_log_that_has_to_be_played_back_is_read(tmp_path: Path) -> None:
    home = home_with("hermes-agent-0.19.0", tmp_path)
    path = home / ".hermes/state.db"
    for file in crashed(path):
        assert file.exists()
    before = snapshot(home)
    texts = [
        getattr(step, "content", "")
        for each in open_gateway(home).conversations()
        if isinstance(each, Conversation)
        for step in each.steps
    ]
    assert "What time is it in Lisbon?" in texts
    assert snapshot(home) == before


def test_a_database_that_is_in_use_is_read(tmp_path: Path) -> None:
    home = home_with("hermes-agent-0.19.0", tmp_path)
    with closing(sqlite3.connect(home / ".hermes/state.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("DELETE FROM messages WHERE session_id IN (SELECT id FROM sessions WHERE source = 'cli')")
        database.commit()
        found = list(open_gateway(home).conversations())
    assert len([each for each in found if isinstance(each, Conversation)]) == 5


def crashed(path: Path) -> Iterator[Path]:
    """Write to a database like a program that is killed: its last rows are only in the log."""
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("UPDATE messages SET content = 'What time is it in Lisbon?' WHERE content LIKE 'What time%'")
        database.commit()
        for file in (path, path.with_name("state.db-wal")):  # Copied while the program has them open.
            file.with_name(file.name.replace("state", "copy")).write_bytes(file.read_bytes())
            yield file
    path.unlink()
    copy.rename(path)
    path.with_name("copy.db-wal").rename(path.with_name("state.db-wal"))

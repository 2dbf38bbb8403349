"""Session files as miniclaw and claw0 write them, and as crashes leave them."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import Settings
from gateway.conversation import ToolMessage
from gateway.errors import Refused
from gateway.http.guard import control_users
from gateway.importing.destination import find_destinations
from gateway.importing.miniclaw import parse_session
from gateway.importing.transcript import session_id, to_transcript
from gateway.importing.values import ImportedText, ImportedToolResult, ImportedToolUse, UnknownFormat
from gateway.sessions.history import to_messages
from gateway.sessions.storage.codec import decode
from tests.daemon.harness import Parrot, gateway, settings
from tests.daemon_process import gatehouse, write_config

ALREADY_HERE = "Imported 0 sessions and 0 statements; 1 session was already here."
NOW = datetime(2026, 4, 1, tzinfo=UTC)

MINICLAW = {
    "sessionKey": "agent:main:channel:loopback:peer:ada",
    "messages": [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": "my name is Ada", "timestamp": "2024-03-13T12:00:00Z"},
        {"role": "assistant", "content": "Hello Ada!", "timestamp": "2024-03-13T12:00:01Z"},
        {"role": "user", "content": "  "},
        "nonsense",
    ],
    "updatedAt": "2024-03-13T12:00:01Z",
}
SPECIFIED: dict[str, Any] = {
    "session_id": "loopback_ada",
    "channel": "loopback",
    "chat_id": "ada",
    "created_at": "2026-02-15T12:00:00+00:00",
    "last_accessed": "2026-02-15T12:05:00+00:00",
    "messages": [
        {"role": "user", "content": "what time is it in Tokyo and Lima?", "timestamp": "2026-02-15T12:00:01+00:00"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "timestamp": "2026-02-15T12:00:02+00:00",
            "tool_calls": [
                {"id": "c1", "name": "clock", "input": {"city": "Tokyo"}},
                {"id": "c2", "name": "clock", "input": {"city": "Lima"}},
            ],
        },
        {"role": "tool_result", "content": "21:00", "timestamp": "2026-02-15T12:00:03+00:00", "tool_calls": []},
        {"role": "tool_result", "content": "07:00", "timestamp": "2026-02-15T12:00:03+00:00", "tool_calls": []},
        {
            "role": "assistant",
            "content": "",
            "timestamp": "2026-02-15T12:00:04+00:00",
            "tool_calls": [{"function": {"name": "note", "arguments": '{"text": "done"}'}}],
        },
        {"role": "tool_result", "content": {"ok": True}, "timestamp": "2026-02-15T12:00:05+00:00"},
        {"role": "assistant", "content": "21:00 and 07:00.", "timestamp": "2026-02-15T12:00:06+00:00"},
    ],
}
"""A file as the specification of miniclaw shows it."""
CLAW0 = [
    {"type": "session", "id": "abc123", "key": "main:cli:user", "created": "2025-01-01T00:00:00+00:00"},
    {"type": "user", "content": "what time is it?", "ts": "2025-01-01T00:00:01Z"},
    {"type": "tool_use", "name": "get_current_time", "tool_use_id": "t1", "input": {}, "ts": "2025-01-01T00:00:02Z"},
    {"type": "tool_result", "tool_use_id": "t1", "output": "noon", "ts": "2025-01-01T00:00:02Z"},
    {"type": "tool_result", "tool_use_id": "t9", "output": "lost", "ts": "2025-01-01T00:00:02Z"},
    {"type": "assistant", "content": "It is noon.", "ts": 1735689604},
]


TOOL_TURN = [ImportedText, ImportedToolUse, ImportedToolResult, ImportedToolResult, ImportedText]


def as_lines(items: Sequence[object]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


def test_miniclaw_file_is_parsed_and_omissions_are_counted() -> None:
    found = parse_session(json.dumps(MINICLAW).encode(), NOW)
    assert [(step.is_user, step.content) for step in found.steps if isinstance(step, ImportedText)] == [
        (True, "my name is Ada"),
        (False, "Hello Ada!"),
    ]
    assert found.left_out == {"system message": 1, "empty message": 1, "damaged message": 1}


def test_claw0_lines_are_parsed_with_tools_and_a_torn_end() -> None:
    found = parse_session(as_lines(CLAW0) + b'{"type": "user", "conte', NOW)
    assert [type(step) for step in found.steps] == TOOL_TURN
    assert found.steps[-1].at == datetime(2025, 1, 1, 0, 0, 4, tzinfo=UTC)
    assert found.left_out == {"damaged line": 1}


@pytest.mark.parametrize(
    ("key", "scope"),
    [
        ("agent:main:main", "agent:main:main"),
        ("agent:main:channel:feishu:peer:ou_1", "agent:main:feishu:direct:ou_1"),
        ("agent:main:channel:feishu:group:oc:2", "agent:main:feishu:group:oc%3A2"),
        ("agent:main:channel:cli", "agent:main:terminal:direct:ada"),
        ("main:cli:user", "agent:main:terminal:direct:ada"),
        ("agent:main:somewhere:direct:123", "agent:main:somewhere:direct:123"),
        ("main:somewhere:123", "agent:main:somewhere:direct:123"),
    ],
)
def test_key_is_mapped_to_a_scope(key: str, scope: str) -> None:
    found = parse_session(json.dumps({**MINICLAW, "sessionKey": key}).encode(), NOW)
    assert find_destinations(Settings(), found, "ada")[0].scope == scope


@pytest.mark.parametrize("key", ["", "x", "agent:main", "main:UPPER:1", "agent:main:channel"])
def test_unclear_key_asks_for_a_scope(key: str) -> None:
    with pytest.raises(Refused, match="--scope"):
        find_destinations(Settings(), parse_session(json.dumps({**MINICLAW, "sessionKey": key}).encode(), NOW), "ada")


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "ts", "id", "messages", "text"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(_json, st.booleans())
def test_any_json_is_parsed_or_refused(value: object, as_message: bool) -> None:  # noqa: FBT001 - hypothesis gives it
    whole = {"sessionKey": "agent:main:main", "messages": [value]} if as_message else value
    try:
        parse_session(json.dumps(whole).encode(), NOW)
    except UnknownFormat:
        assert not as_message


def test_imported_conversation_counts_as_just_used() -> None:
    found = parse_session(as_lines(CLAW0), NOW)
    lines = list(to_transcript(found, find_destinations(Settings(), found, "ada")[0], 1, NOW, epoch=1))
    assert decode(lines[-1]).ts == NOW


async def test_imported_history_is_used_and_a_second_import_adds_nothing(tmp_path: Path) -> None:
    """As a process, on a data directory without a running daemon."""
    user = control_users()[os.getuid()]
    write_config(tmp_path)
    source = tmp_path / "sessions"
    source.mkdir()
    (source / "a.json").write_text(json.dumps(MINICLAW))
    (source / "b.jsonl").write_bytes(as_lines(CLAW0))
    (source / "sessions.json").write_text("{}")
    (source / "c.json").write_text('{"no": "session"}')
    first = gatehouse("import", str(source), home=tmp_path)
    assert first.returncode == 0, first.stderr
    shown = first.stdout
    assert "agent:main:loopback:direct:ada: 1 session, 2 messages; session 1 becomes the active one." in shown
    assert f"agent:main:terminal:direct:{user}: 1 session, 2 messages, 1 tool call; session 1 becomes" in shown
    assert "Left out of these sessions: 1 system message, 1 empty message, 1 damaged message." in shown
    assert "c.json: it is neither a JSON object with messages nor JSON lines" in shown
    assert shown.splitlines()[-1] == "Imported 2 sessions and 0 statements."
    second = gatehouse("import", str(source), home=tmp_path)
    assert second.stdout.splitlines()[-1] == "Imported 0 sessions and 0 statements; 2 sessions were already here."
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("what is my name?", peer="ada")
        assert "Ada" in (await chat.hear_message()).text


def test_a_file_of_the_specification_is_imported_with_its_tool_calls() -> None:
    found = parse_session(json.dumps(SPECIFIED).encode(), NOW)
    assert not found.left_out
    calls = [(step.id, step.name, step.input) for step in found.steps if isinstance(step, ImportedToolUse)]
    assert calls[:2] == [("c1", "clock", {"city": "Tokyo"}), ("c2", "clock", {"city": "Lima"})]
    assert calls[2][1:] == ("note", {"text": "done"})
    results = [(step.id, step.output) for step in found.steps if isinstance(step, ImportedToolResult)]
    assert results == [("c1", "21:00"), ("c2", "07:00"), (calls[2][0], '{"ok": true}')]
    destination, *_ = find_destinations(Settings(), found, "root")
    assert destination.scope == "agent:main:loopback:direct:ada"
    entries = [decode(line) for line in to_transcript(found, destination, 1, NOW, epoch=1)]
    messages = to_messages(entries)
    assert [type(message).__name__ for message in messages] == [
        "UserMessage",
        "AssistantMessage",
        "ToolMessage",
        "AssistantMessage",
        "ToolMessage",
        "AssistantMessage",
    ]
    assert all(not outcome.is_error for each in messages if isinstance(each, ToolMessage) for outcome in each.outcomes)


@pytest.mark.parametrize(
    ("channel", "chat", "scopes"),
    [
        ("telegram", "42", ["telegram:direct:42", "telegram:group:42", "telegram:channel:42"]),
        ("telegram", "-42", ["telegram:group:-42", "telegram:channel:-42", "telegram:direct:-42"]),
        ("cli", "me", ["terminal:direct:root"]),
        ("unknown", "agent:main:main", ["main"]),
    ],
)
def test_channel_and_chat_are_mapped_to_scopes(channel: str, chat: str, scopes: list[str]) -> None:
    found = parse_session(json.dumps({**SPECIFIED, "channel": channel, "chat_id": chat}).encode(), NOW)
    assert [each.scope for each in find_destinations(Settings(), found, "root")] == [f"agent:main:{x}" for x in scopes]


def test_sessions_of_one_chat_are_told_apart_by_their_start() -> None:
    one = parse_session(json.dumps(SPECIFIED).encode(), NOW)
    other = parse_session(json.dumps({**SPECIFIED, "created_at": "2026-02-16T12:00:00+00:00"}).encode(), NOW)
    assert session_id(one) != session_id(other)


async def test_an_exported_session_is_the_same_after_its_import(tmp_path: Path) -> None:
    write_config(tmp_path)
    source, key = tmp_path / "a.json", "agent:main:loopback:direct:ada"
    source.write_text(json.dumps(SPECIFIED))
    assert gatehouse("import", str(source), home=tmp_path).returncode == 0
    first = gatehouse("sessions", "export", key, "--format", "json", home=tmp_path).stdout
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_config(elsewhere)
    source.write_text(first)
    assert gatehouse("import", str(source), home=elsewhere).returncode == 0
    second = gatehouse("sessions", "export", key, "--format", "json", home=elsewhere).stdout
    assert json.loads(second)["messages"] == json.loads(first)["messages"]
    assert len(json.loads(first)["messages"]) == len(SPECIFIED["messages"])
    again = gatehouse("import", str(source), home=elsewhere)
    assert again.stdout.splitlines()[-1] == ALREADY_HERE


async def test_an_archived_import_is_known_and_its_number_is_not_used_again(tmp_path: Path) -> None:
    write_config(tmp_path)
    source = tmp_path / "a.json"
    source.write_text(json.dumps(SPECIFIED))
    assert gatehouse("import", str(source), home=tmp_path).returncode == 0
    configured = settings(tmp_path, session={"backlog_limit": 1})
    async with gateway(configured, Parrot.answering) as (_, chat):
        for text in ("/new", "hello"):
            await chat.say(text, peer="ada")
            await chat.hear_message()
        await chat.say("/new", peer="ada")
        assert "is in the archive now" in (await chat.hear_message()).text
    again = gatehouse("import", str(source), home=tmp_path)
    assert again.stdout.splitlines()[-1] == ALREADY_HERE
    source.write_text(json.dumps({**SPECIFIED, "session_id": "another", "created_at": "2025-01-01T00:00:00Z"}))
    other = gatehouse("import", str(source), home=tmp_path)
    assert other.stdout.splitlines()[-1] == "Imported 1 session and 0 statements.", other

"""Data that nanobot, hermes-agent and OpenClaw have written, and PicoClaw's as its source describes it."""

import json
import os
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from gateway.contract import PeerKind
from gateway.importing.gateways import installed_gateways, open_gateway
from gateway.importing.proposal import proposed_config
from gateway.importing.values import (
    Conversation,
    ForeignGateway,
    ImportedStep,
    ImportedText,
    ImportedToolResult,
    ImportedToolUse,
    LeftOut,
    Place,
    UnknownFormat,
)
from tests.importing.fixtures import home_with

ADA = Place(channel="telegram", peer="42", kind=PeerKind.DIRECT)
GROUP = Place(channel="telegram", peer="-1001234567890", kind=PeerKind.GROUP)
TOPIC = Place(channel="telegram", peer="-1001234567890", kind=PeerKind.GROUP, thread="7")
TERMINAL = Place(channel="terminal", peer="", kind=PeerKind.DIRECT)
RECORDED = ("openclaw-2026.9.6", "nanobot-0.3.5", "hermes-agent-0.19.0")


def conversations(gateway: ForeignGateway) -> list[Conversation]:
    found = list(gateway.conversations())
    assert all(isinstance(each, Conversation) for each in found), found
    return [each for each in found if isinstance(each, Conversation)]


def told(step: ImportedStep) -> str:
    match step:
        case ImportedText():
            return ("> " if step.is_user else "< ") + step.content
        case ImportedToolUse():
            return f"{step.name} {json.dumps(step.input)}"
        case ImportedToolResult():
            return f"= {step.output}"


@pytest.mark.parametrize("name", RECORDED)
def test_every_chat_of_a_gateway_is_found_with_its_messages_and_tool_calls(name: str, tmp_path: Path) -> None:
    gateway = open_gateway(home_with(name, tmp_path))
    assert name.startswith(gateway.maker)
    found = conversations(gateway)
    places = [each.place for each in found]
    for place in (ADA, GROUP, TOPIC, TERMINAL, Place(channel="telegram", peer="77", kind=PeerKind.DIRECT)):
        assert place in places
    assert not any(each.left_out for each in found)
    newest = max((each for each in found if each.place == ADA), key=lambda each: each.updated)
    steps = [told(step) for step in newest.steps]
    assert steps[0] == "> I like green tea. Please remember that."
    assert "green tea" in steps[1]
    assert steps[2].startswith("= ")
    assert steps[3] == "< I will remember that."
    assert steps[5] == 'read_file {"path": "missing.txt"}'.replace(
        "read_file", "read" if "claw" in name else "read_file"
    )
    assert "not found" in steps[6].lower()
    assert steps[-1].startswith("< Chapter 1. The train")  # OpenClaw has compressed this one.
    assert steps[-1].endswith("green tea.")
    assert newest.steps[2].id == newest.steps[1].id  # type: ignore[union-attr]  # A call and its result.


@pytest.mark.parametrize("name", ["openclaw-2026.9.6", "hermes-agent-0.19.0"])
def test_a_conversation_before_a_reset_is_a_session_of_its_own(name: str, tmp_path: Path) -> None:
    of_ada = [each for each in conversations(open_gateway(home_with(name, tmp_path))) if each.place == ADA]
    first, second = sorted(of_ada, key=lambda each: each.created)
    assert told(first.steps[0]) == "> My name is Ada and I live in Lisbon."
    assert first.updated <= second.created
    assert first.id != second.id


@pytest.mark.parametrize("name", RECORDED)
def test_memory_and_settings_are_found(name: str, tmp_path: Path) -> None:
    gateway = open_gateway(home_with(name, tmp_path))
    assert any("Ada likes green tea." in text for file in gateway.memory for text in file.statements)
    assert not any("personalize interactions" in text for file in gateway.memory for text in file.statements)
    (channel,) = gateway.settings.channels
    assert (channel.name, channel.token, channel.allow) == ("telegram", "123456:made-up-token", ("42", "77"))
    assert gateway.settings.model is not None
    assert gateway.settings.model.base_url == "http://127.0.0.1:8000/v1"
    assert "made-up-token" not in repr(gateway.settings)


def test_senders_of_openclaw_are_known_by_name(tmp_path: Path) -> None:
    found = conversations(open_gateway(home_with("openclaw-2026.9.6", tmp_path)))
    asked = next(each for each in found if each.place == GROUP).steps[0]
    assert isinstance(asked, ImportedText)
    assert (asked.sender, asked.sender_name) == ("42", "Ada L")


def test_data_in_a_home_folder_is_found(tmp_path: Path) -> None:
    for name in RECORDED:
        home_with(name, tmp_path)
    picoclaw(tmp_path)
    assert [name for name, _ in installed_gateways(tmp_path)] == ["openclaw", "nanobot", "hermes", "picoclaw"]
    with pytest.raises(UnknownFormat, match=r"several gateways; name .*/\.openclaw or .*/\.nanobot or "):
        open_gateway(tmp_path)


def picoclaw(home: Path) -> Path:
    """Write files as PicoClaw's public source does: a session with a scope, one of an older version, and settings."""
    folder = home / ".picoclaw"
    sessions = folder / "workspace/sessions"
    sessions.mkdir(parents=True)
    (folder / "workspace/memory/202611").mkdir(parents=True)
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "what time is it?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It is noon."},
    ]
    (sessions / "sk_v1_0a.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in messages))
    meta = {
        "key": "sk_v1_0a",
        "summary": "",
        "skip": 0,
        "count": 4,
        "created_at": "2026-03-01T10:00:00+01:00",
        "updated_at": "2026-03-01T10:05:00.123456789+01:00",
        "scope": {
            "version": 1,
            "agent_id": "main",
            "channel": "telegram",
            "account": "default",
            "dimensions": ["chat"],
            "values": {"chat": "group:-1001234567890/7"},
        },
        "aliases": ["agent:main:main", "agent:main:telegram:group:-1001234567890/7"],
    }
    (sessions / "sk_v1_0a.meta.json").write_text(json.dumps(meta))
    old = {"key": "agent:main:telegram:direct:42", "messages": messages, "created": "2026-02-01T10:00:00Z"}
    (sessions / "agent_main_telegram_direct_42.json").write_text(json.dumps(old))
    (sessions / "heartbeat.json").write_text(json.dumps({"key": "heartbeat", "messages": messages}))
    (folder / "workspace/memory/MEMORY.md").write_text("# Long-term Memory\n\n- Ada lives in Lisbon.\n")
    (folder / "workspace/memory/202611/20261118.md").write_text("# 2026-11-18\n\n- Ada bought an umbrella.\n")
    config = {
        "version": 3,
        "agents": {"defaults": {"model_name": "fast"}},
        "model_list": [{"model_name": "fast", "model": "deepseek/deepseek-chat"}],
        "channel_list": {"telegram": {"enabled": True, "type": "telegram", "allow_from": ["42|ada"], "settings": {}}},
        "session": {"identity_links": {"ada": ["telegram:42", "discord:43"]}},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / ".security.yml").write_text(
        "model_list:\n  fast:\n    api_keys:\n      - made-up-key\n"
        "channel_list:\n  telegram:\n    settings:\n      token: 123456:made-up-token\n"
    )
    return folder


def test_files_of_picoclaw_are_read_as_its_source_writes_them(tmp_path: Path) -> None:
    gateway = open_gateway(picoclaw(tmp_path))
    assert gateway.maker == "picoclaw"
    found = {each.key if isinstance(each, Conversation) else each.what: each for each in gateway.conversations()}
    new, old = found["sk_v1_0a"], found["agent:main:telegram:direct:42"]
    assert isinstance(new, Conversation)
    assert isinstance(old, Conversation)
    assert (new.place, old.place) == (TOPIC, ADA)
    assert [told(step) for step in new.steps] == ["> what time is it?", "clock {}", "= noon", "< It is noon."]
    assert f"{new.updated:%Y-%m-%d %H:%M}" == "2026-03-01 09:05"
    assert isinstance(found["heartbeat"], LeftOut)
    assert [(each.name, each.statements, each.noted) for each in gateway.memory][1] == (
        "memory/202611/20261118.md",
        ("Ada bought an umbrella.",),
        "2026-11-18",
    )
    (channel,) = gateway.settings.channels
    assert (channel.token, channel.allow) == ("123456:made-up-token", ("42",))
    assert gateway.settings.model is not None
    assert (gateway.settings.model.base_url, gateway.settings.model.api_key) == (
        "https://api.deepseek.com/v1",
        "made-up-key",
    )
    assert gateway.settings.identity_links == {"ada": ("telegram:42", "discord:43")}


def test_sessions_in_the_cold_archive_of_openclaw_are_named(tmp_path: Path) -> None:
    home = home_with("openclaw-2026.9.6", tmp_path)
    with closing(sqlite3.connect(next(home.glob(".openclaw/agents/*/agent/*.sqlite")))) as database:
        database.execute("CREATE TABLE session_transcript_cold_archives (session_id)")
        database.execute(
            "INSERT INTO session_transcript_cold_archives "
            "SELECT session_id FROM session_windows WHERE session_key LIKE '%:77'"
        )
        database.execute(
            "DELETE FROM transcript_events "
            "WHERE session_id IN (SELECT session_id FROM session_transcript_cold_archives)"
        )
        database.commit()
    (left_out,) = [each for each in open_gateway(home).conversations() if isinstance(each, LeftOut)]
    assert left_out.why == "OpenClaw has moved it to its cold archive, which is not read"


def test_odd_settings_of_picoclaw_become_a_valid_configuration(tmp_path: Path) -> None:
    folder = picoclaw(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["channels"] = {"telegram": {"enabled": True, "allow_from": ["43"]}}
    config["channel_list"]["telegram"]["allow_from"] = ["42", "--5", "\u0664"]
    config["model_list"][0]["api_base"] = "https://ada:made-up-password@models.example.com/v1"
    (folder / "config.json").write_text(json.dumps(config))
    settings = open_gateway(folder).settings
    text = proposed_config("picoclaw", settings, [], with_secrets=True)
    proposed = tomllib.loads(text)
    assert proposed["channels"]["telegram"]["allow"] == ["--5", 42, "\u0664"]
    assert proposed["providers"]["deepseek"] == {"kind": "openai", "api_key": "made-up-key"}
    assert "made-up-password" not in text


def test_a_damaged_session_of_picoclaw_does_not_hide_the_others(tmp_path: Path) -> None:
    folder = picoclaw(tmp_path)
    (folder / "workspace/sessions/sk_v1_00.meta.json").write_text("{")
    found = list(open_gateway(folder).conversations())
    assert [each.why for each in found if isinstance(each, LeftOut) and each.is_damaged] == [
        "sk_v1_00.meta.json is damaged: it is not a JSON object"
    ]
    assert len([each for each in found if isinstance(each, Conversation)]) == 2


def test_sessions_in_files_of_an_older_openclaw_are_read(tmp_path: Path) -> None:
    sessions = tmp_path / ".openclaw/agents/main/sessions"
    sessions.mkdir(parents=True)
    index = {
        "agent:main:main": {"sessionId": "a", "chatType": "direct", "lastChannel": "telegram", "lastTo": "telegram:42"},
        "cron:news": {"sessionId": "b"},
    }
    (sessions / "sessions.json").write_text(json.dumps(index))
    events = [
        {"type": "session", "version": 3, "id": "a", "timestamp": "2026-02-01T10:00:00Z", "cwd": "/home/ada"},
        message("1", None, "user", "hello"),
        message("2", "1", "assistant", [{"type": "text", "text": "Hi."}, {"type": "thinking", "thinking": "..."}]),
        message("3", "2", "user", "wrong way"),
        message("4", "2", "user", "what now?"),
        message("5", "4", "assistant", [{"type": "toolCall", "id": "t", "name": "read", "arguments": {"path": "a"}}]),
        message("6", "5", "toolResult", [{"type": "text", "text": "42"}], toolCallId="t", isError=False),
        message("7", "6", "assistant", [{"type": "text", "text": "NO_REPLY"}]),
    ]
    (sessions / "a.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in events) + '{"type": "mess')
    (sessions / "b.jsonl").write_text(json.dumps({**events[0], "id": "b"}) + "\n")
    one, other = open_gateway(tmp_path).conversations()
    assert isinstance(one, Conversation)
    assert one.place == ADA
    assert [told(step) for step in one.steps] == ["> hello", "< Hi.", "> what now?", 'read {"path": "a"}', "= 42"]
    assert one.left_out == {"damaged event": 1, "silent answer": 1}
    assert isinstance(other, LeftOut)
    assert "job" in other.why


def message(id_: str, parent: str | None, role: str, content: object, **more: object) -> dict[str, object]:
    said = {"role": role, "content": content, "timestamp": 1_770_000_000_000 + int(id_), **more}
    return {"type": "message", "id": id_, "parentId": parent, "message": said}


def test_settings_of_openclaw_may_have_comments(tmp_path: Path) -> None:
    folder = tmp_path / ".openclaw"
    folder.mkdir()
    (folder / "openclaw.json").write_text(
        """{
        // My bot.
        channels: { telegram: { botToken: "${TELEGRAM_BOT}", allowFrom: ["telegram:42",], }, slack: {} },
        session: { dmScope: 'per-peer', identityLinks: { ada: ["telegram:42", "discord:7"] } },
        agents: { defaults: { model: "anthropic/claude-sonnet-4-5" } }, /* "//" in a text stays: */
        note: "http://example.org",
        }"""
    )
    settings = open_gateway(folder).settings
    (channel,) = settings.channels
    assert (channel.token, channel.allow) == ("env:TELEGRAM_BOT", ("42",))
    assert (settings.dm_scope, settings.identity_links) == ("per-peer", {"ada": ("telegram:42", "discord:7")})
    assert settings.model is not None
    assert (settings.model.kind, settings.model.model) == ("anthropic", "claude-sonnet-4-5")
    assert settings.notes == ("Gatehouse has no channel 'slack'.",)


@pytest.mark.parametrize("name", ["openclaw", "nanobot", "hermes", "picoclaw"])
def test_a_folder_of_something_else_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match="is not a folder of"):
        open_gateway(tmp_path, name)
    with pytest.raises(UnknownFormat, match="does not exist"):
        open_gateway(tmp_path / "nowhere", name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
@pytest.mark.parametrize("name", RECORDED)
def test_a_folder_that_may_only_be_read_is_read(name: str, tmp_path: Path) -> None:
    home = home_with(name, tmp_path)
    folders = [each for each in home.rglob("*") if each.is_dir()]
    for folder in folders:
        folder.chmod(0o500)
    try:
        assert conversations(open_gateway(home))
    finally:
        for folder in folders:
            folder.chmod(0o700)


@pytest.mark.parametrize("people", [1, 2])
def test_the_main_session_of_openclaw_belongs_to_its_only_person(people: int, tmp_path: Path) -> None:
    """By default, OpenClaw has one session for all direct chats, and names those who have used it."""
    home = home_with("openclaw-2026.9.6", tmp_path)
    peers = ("42", "77")[:people]
    with closing(sqlite3.connect(next(home.glob(".openclaw/agents/*/agent/*.sqlite")))) as database:
        (session,) = database.execute(
            "SELECT session_id FROM session_windows WHERE session_key = 'agent:main:telegram:direct:42'"
        ).fetchone()
        database.execute(
            "UPDATE session_windows SET session_key = 'agent:main:main', primary_conversation_id = NULL "
            "WHERE session_id = ?",
            (session,),
        )
        database.execute("CREATE TABLE session_conversations (session_id, conversation_id, role)")
        for peer in peers:
            database.execute(
                "INSERT INTO session_conversations SELECT ?, conversation_id, 'participant' FROM conversations "
                "WHERE kind = 'direct' AND peer_id = ?",
                (session, peer),
            )
        database.commit()
    found = [each for each in conversations(open_gateway(home)) if each.id.startswith(session)]
    assert len(found) == 2
    wanted = (ADA, "") if people == 1 else (None, "agent:main:main")
    assert [(each.place, each.scope) for each in found] == [wanted, wanted]

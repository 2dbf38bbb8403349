import json

import msgspec
import pytest
from hypothesis import given

from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.storage.codec import DamagedEntry, decode, stamp
from tests.sessions.samples import START, conversation, header, marks


@given(conversation | marks)
def test_every_entry_is_one_line_and_comes_back_the_same(entry: Entry) -> None:
    sealed, line = stamp(entry, seq=7, now=START)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == sealed


@given(conversation | marks)
def test_every_line_has_type_seq_and_time(entry: Entry) -> None:
    _, line = stamp(entry, seq=7, now=START)
    fields = json.loads(line)
    assert fields["seq"] == 7
    assert fields["ts"] == "2026-03-01T00:00:00Z"
    assert fields["type"] == entry.__struct_config__.tag


def test_a_header_has_the_origin_of_its_session() -> None:
    _, line = stamp(header(), seq=1, now=START)
    fields = json.loads(line)
    assert fields["type"] == "session"
    assert fields["version"] == 1
    assert fields["origin"] == {"channel": "web", "account": "default", "chat_id": "ann", "kind": "direct"}


def test_a_summary_is_written_with_from_and_covers() -> None:
    _, line = stamp(e.Summary(content="so far", from_seq=3, covers=9), seq=10, now=START)
    fields = json.loads(line)
    assert (fields["from"], fields["covers"]) == (3, 9)


@pytest.mark.parametrize(
    "text", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\r\n", "\x1c\x1d\x1e", "👩‍👩‍👧", "\u202eabc"]
)
def test_text_that_looks_like_a_line_break_stays_on_its_line(text: str) -> None:
    sealed, line = stamp(e.User(content=text), seq=1, now=START)
    assert line.split(b"\n")[1:] == [b""]
    assert decode(line) == sealed
    assert isinstance(sealed, e.User)
    assert sealed.content == text


def test_lone_surrogates_are_replaced_in_every_field() -> None:
    sealed, line = stamp(e.ToolUse(tool_use_id="1", name="\ud800", input={"\udc00": ["\ud800x"]}), seq=1, now=START)
    assert decode(line) == sealed
    assert sealed == e.ToolUse(seq=1, ts=START, tool_use_id="1", name="\ufffd", input={"\ufffd": ["\ufffdx"]})


def test_an_imported_entry_keeps_its_time() -> None:
    sealed, _ = stamp(e.User(content="hi", ts=START), seq=1, now=START.replace(year=2030))
    assert sealed.ts == START


def test_an_entry_type_of_a_newer_version_is_not_damage() -> None:
    entry = decode(b'{"type":"dream","seq":4,"ts":"2026-03-01T00:00:00Z","turn":"t1","about":["sheep"]}')
    assert entry == e.Unknown(kind="dream", seq=4, ts=START, turn="t1")


def test_fields_of_a_newer_version_are_skipped() -> None:
    entry = decode(b'{"type":"user","seq":4,"ts":"2026-03-01T00:00:00Z","content":"hi","mood":"fine"}')
    assert entry == e.User(content="hi", seq=4, ts=START)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\0" * 512,
        b"null",
        b"[]",
        b"{}",
        b'{"type":"user"}',
        b'{"type":"user","seq":1,"ts":"2026-03-01T00:00:00Z"}',
        b'{"type":"user","seq":"1","ts":"2026-03-01T00:00:00Z","content":"hi"}',
        b'{"type":"user","seq":0,"ts":"2026-03-01T00:00:00Z","content":"hi"}',
        b'{"type":"user","seq":1,"content":"hi"}',
        b'{"type":"user","seq":1,"ts":"2026-03-01T00:00:00","content":"hi"}',
        b'{"type":"user","seq":1,"ts":"2026-03-01T00:00:00Z","content":NaN}',
        b'{"type":"user","seq":1,"ts":"2026-03-01T00:00:00Z","content":"\xff"}',
        b'{"type":"user","seq":1,"ts":"2026-03-01T00:00:00Z","content":"hi"}{"type":"clear"}',
        b'{"type":"tool_use","seq":1,"ts":"2026-03-01T00:00:00Z","tool_use_id":"1","name":"x","input":'
        + b'{"a":' * 200_000
        + b"1"
        + b"}" * 200_001,
        b'{"type":7,"seq":1,"ts":"2026-03-01T00:00:00Z"}',
    ],
)
def test_an_invalid_line_is_reported_as_damaged(line: bytes) -> None:
    with pytest.raises(DamagedEntry):
        decode(line)


def test_every_entry_type_of_the_design_exists() -> None:
    table = (
        "session user assistant tool_use tool_update tool_result plan approval edit summary clear undo title workspace"
        " agent model status activated turn_end checkpoint file system"
    )
    kinds = [kind for kind in vars(e).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    tags = {kind.__struct_config__.tag for kind in kinds if issubclass(kind, Entry)}
    assert tags - {"unknown", None, "Entry"} == set(table.split())

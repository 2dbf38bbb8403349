import contextlib
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.websocket.wire import (
    MAX_FRAME_SIZE,
    BadFrame,
    ClientMessage,
    CommandsFrame,
    CommandsRequest,
    DraftFrame,
    HistoryRequest,
    MessageFrame,
    ServerFrame,
    SessionsRequest,
    encode,
    parse,
    parse_server_frame,
)
from gateway.contract import Button, CommandInfo

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
nearly_frames = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "sessions", "history", "commands", "hello"]) | json_values},
    optional={"id": json_values, "text": json_values, "limit": json_values},
)


@pytest.mark.parametrize(
    ("raw", "frame"),
    [
        ('{"type":"message","id":"m1","text":"hi"}', ClientMessage(id="m1", text="hi")),
        ('{"type":"sessions"}', SessionsRequest()),
        ('{"type":"history","limit":7}', HistoryRequest(limit=7)),
        ('{"type":"history"}', HistoryRequest(limit=100)),
        (b'{"type":"commands","added later":1}', CommandsRequest()),
    ],
)
def test_parses_each_kind_of_frame(raw: str | bytes, frame: object) -> None:
    assert parse(raw) == frame


@given(st.binary() | st.text(st.characters()) | json_values.map(json.dumps) | nearly_frames.map(json.dumps))
def test_parse_raises_only_bad_frame(raw: str | bytes) -> None:
    with contextlib.suppress(BadFrame):
        parse(raw)


@given(st.text(st.characters(), max_size=2000))
def test_parsed_text_can_be_written_to_a_transcript(text: str) -> None:
    with contextlib.suppress(BadFrame):
        frame = parse(json.dumps({"type": "message", "id": "m1", "text": text}))
        assert isinstance(frame, ClientMessage)
        assert "\0" not in frame.text
        frame.text.encode()


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "{",
        "[]",
        "null",
        '"message"',
        '{"type":"shout","id":"m1"}',
        '{"type":"message","text":"no id"}',
        '{"type":"message","id":"","text":"empty id"}',
        '{"type":"message","id":"two words","text":"a space in the id"}',
        '{"type":"message","id":"new\\nline","text":"x"}',
        '{"type":"history","limit":0}',
        '{"type":"history","limit":1e9}',
        '{"type":"sessions","deep":' + "[" * 30_000,
        b"\xff\xfe",
        b'{"type":"message","id":"m1","text":"\xff"}',
    ],
)
def test_a_bad_frame_is_described_in_one_sentence(raw: str | bytes) -> None:
    with pytest.raises(BadFrame, match=r"^[A-Z].*\.$"):
        parse(raw)


def test_half_a_surrogate_pair_is_replaced() -> None:
    """If the frame were refused, the page would wait for its acknowledgement and send nothing else."""
    frame = parse(json.dumps({"type": "message", "id": "m1", "text": "half \ud83d, whole \U0001f600"}))
    assert frame == ClientMessage(id="m1", text="half \ufffd, whole \U0001f600")


@pytest.mark.parametrize("text", ["", " \n\t", "x" * MAX_FRAME_SIZE])
def test_a_bad_frame_has_the_id_of_its_message(text: str) -> None:
    with pytest.raises(BadFrame) as refusal:
        parse(json.dumps({"type": "message", "id": "m7", "text": text}))
    assert refusal.value.id == "m7"


def test_absent_fields_are_not_encoded() -> None:
    assert encode(DraftFrame(key="k", text="so far")) == b'{"type":"draft","key":"k","text":"so far"}'


@given(st.text() | st.binary())
def test_parsing_a_server_frame_never_raises(data: str | bytes) -> None:
    assert parse_server_frame(data) is None or data


def test_a_client_parses_the_frames_of_the_gateway() -> None:
    frames: list[ServerFrame] = [
        MessageFrame(
            key="k",
            kind="notice",
            text="hi",
            at=datetime(2026, 3, 1, tzinfo=UTC),
            reply_to="m1",
            buttons=(Button(label="Go", command="/go"),),
        ),
        DraftFrame(key="k", text="h", reply_to="m1"),
        CommandsFrame(commands=[CommandInfo(name="new", arguments="", summary="Start a new conversation")]),
    ]
    assert [parse_server_frame(encode(frame)) for frame in frames] == frames


def test_the_gateway_parses_the_frames_of_a_client() -> None:
    said = ClientMessage(id="m1", text="grüße ✓")
    assert parse(encode(said)) == said


@pytest.mark.parametrize("data", ['{"type":"from the future"}', "{}", "[", b"\xff", '{"type":"ack"}'])
def test_an_unknown_server_frame_is_skipped(data: str | bytes) -> None:
    assert parse_server_frame(data) is None

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.websocket.wire import (
    MAX_FRAME_SIZE,
    AskCommands,
    AskHistory,
    AskSessions,
    BadFrame,
    Draft,
    Say,
    encode,
    parse,
)

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
        ('{"type":"message","id":"m1","text":"hi"}', Say(id="m1", text="hi")),
        ('{"type":"sessions"}', AskSessions()),
        ('{"type":"history","limit":7}', AskHistory(limit=7)),
        ('{"type":"history"}', AskHistory(limit=100)),
        (b'{"type":"commands","added later":1}', AskCommands()),
    ],
)
def test_reads_each_kind_of_frame(raw: str | bytes, frame: object) -> None:
    assert parse(raw) == frame


@given(st.binary() | st.text(st.characters()) | json_values.map(json.dumps) | nearly_frames.map(json.dumps))
def test_reads_anything_or_says_what_is_wrong(raw: str | bytes) -> None:
    with contextlib.suppress(BadFrame):
        parse(raw)


@given(st.text(st.characters(), max_size=2000))
def test_text_comes_out_fit_for_a_transcript(text: str) -> None:
    with contextlib.suppress(BadFrame):
        frame = parse(json.dumps({"type": "message", "id": "m1", "text": text}))
        assert isinstance(frame, Say)
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
def test_a_bad_frame_gets_one_sentence(raw: str | bytes) -> None:
    with pytest.raises(BadFrame, match=r"^[A-Z].*\.$"):
        parse(raw)


def test_half_an_emoji_does_not_keep_a_message_from_being_taken() -> None:
    """A page would wait for ever for its acknowledgement, and send nothing else."""
    frame = parse(json.dumps({"type": "message", "id": "m1", "text": "half \ud83d, whole \U0001f600"}))
    assert frame == Say(id="m1", text="half \ufffd, whole \U0001f600")


@pytest.mark.parametrize("text", ["", " \n\t", "x" * MAX_FRAME_SIZE])
def test_a_refusal_names_the_message_it_is_about(text: str) -> None:
    with pytest.raises(BadFrame) as refusal:
        parse(json.dumps({"type": "message", "id": "m7", "text": text}))
    assert refusal.value.id == "m7"


def test_what_is_not_there_is_not_sent() -> None:
    assert encode(Draft(key="k", text="so far")) == b'{"type":"draft","key":"k","text":"so far"}'

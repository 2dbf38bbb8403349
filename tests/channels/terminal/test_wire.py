from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.terminal.wire import pack, unpack
from channels.websocket.wire import Commands, Draft, Message, Say, ServerFrame, encode, parse
from gateway.contract import Button, CommandInfo


@given(st.text() | st.binary())
def test_reads_anything_without_a_complaint(data: str | bytes) -> None:
    assert unpack(data) is None or data


def test_reads_what_the_gateway_writes() -> None:
    frames: list[ServerFrame] = [
        Message(
            key="k",
            kind="notice",
            text="hi",
            at=datetime(2026, 3, 1, tzinfo=UTC),
            reply_to="m1",
            buttons=(Button(label="Go", command="/go"),),
        ),
        Draft(key="k", text="h", reply_to="m1"),
        Commands(commands=[CommandInfo(name="new", arguments="", summary="Start anew")]),
    ]
    assert [unpack(encode(frame)) for frame in frames] == frames


def test_the_gateway_reads_what_we_write() -> None:
    said = Say(id="m1", text="grüße ✓")
    assert parse(pack(said)) == said


@pytest.mark.parametrize("data", ['{"type":"from the future"}', "{}", "[", b"\xff", '{"type":"ack"}'])
def test_skips_what_it_does_not_know(data: str | bytes) -> None:
    assert unpack(data) is None

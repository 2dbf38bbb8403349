import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.agent.providers.sse import MAX_EVENT_BYTES, EventReader

STREAM = (
    'data: {"a": "grüß"}\n\n: keep-alive\n\nevent: ping\ndata: {}\n\nevent: error\ndata: one\ndata:two\n\n\n'
    "id: 7\nretry: 5\nunknown: x\n\ndata\n\ndata: 😀 [DONE]\n\n"
).encode()
EVENTS = [
    (b"", '{"a": "grüß"}'.encode()),
    (b"error", b"one\ntwo"),
    (b"", b""),
    (b"", "😀 [DONE]".encode()),
]


def read(*pieces: bytes) -> list[tuple[bytes, bytes]]:
    reader = EventReader()
    return [(event.name, event.data) for piece in pieces for event in reader.feed(piece)]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_lines_may_end_in_three_ways(newline: bytes) -> None:
    assert read(STREAM.replace(b"\n", newline)) == EVENTS


@given(cuts=st.lists(st.integers(0, len(STREAM) * 2)), newline=st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_a_stream_may_be_cut_anywhere(cuts: list[int], newline: bytes) -> None:
    stream = STREAM.replace(b"\n", newline)
    ends = sorted({*(min(cut, len(stream)) for cut in cuts), len(stream)})
    assert read(*(stream[start:end] for start, end in zip([0, *ends], ends, strict=False))) == EVENTS


def test_every_event_is_returned_with_its_last_byte() -> None:
    reader = EventReader()
    assert [len(reader.feed(bytes([byte]))) for byte in b"data: 1\r\n\r\ndata: 2\n\n"].count(1) == 2
    assert [event.data for event in EventReader().feed(b"data: 1\r\r")] == [b"1"]


def test_a_byte_order_mark_hides_no_event() -> None:
    assert read(b"\xef\xbb", b"\xbfdata: 1\n\n") == [(b"", b"1")]


def test_a_ping_is_no_event() -> None:
    """The timeout waits for an event. A model that only sends pings must reach it."""
    assert read(b'event: ping\ndata: {"type": "ping"}\n\n') == []


def test_an_event_without_an_end_is_dropped() -> None:
    assert read(b"data: 1\n\ndata: 2\n") == [(b"", b"1")]


def test_an_event_without_a_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        read(*[b"x" * (MAX_EVENT_BYTES // 16)] * 20)

"""The OpenTelemetry protocol (OTLP): spans as Protocol Buffers. Pure.

https://github.com/open-telemetry/opentelemetry-proto/blob/main/opentelemetry/proto/trace/v1/trace.proto
"""

import struct
from collections.abc import Iterable, Mapping

from gateway.tracing import Span, Value, root_id

PATH = "/v1/traces"
CONTENT_TYPE = "application/x-protobuf"

_VARINT, _FIXED64, _LENGTH = 0, 1, 2
"""Wire types: https://protobuf.dev/programming-guides/encoding/."""
_MAX_VARINT = 10
"""Bytes of a number of 64 bits."""
_STATUS_OK, _STATUS_ERROR = 1, 2


def encode_resource(attributes: Mapping[str, Value]) -> bytes:
    """Return what the spans are about: a `Resource`, as a field of `ResourceSpans`."""
    return _message(1, *(_attribute(1, *each) for each in attributes.items()))


def encode_span(span: Span) -> bytes:
    """Return a `Span`, as a field of `ScopeSpans`."""
    return _message(
        2,
        _message(1, bytes.fromhex(span.trace)),
        _message(2, span.id),
        _message(4, span.parent) if span.parent else b"",
        _message(5, span.name.encode()),
        _number(6, span.kind),
        _key(7, _FIXED64) + struct.pack("<Q", span.started),
        _key(8, _FIXED64) + struct.pack("<Q", span.ended),
        *(_attribute(9, *each) for each in span.attributes.items()),
        *(_message(13, _message(1, bytes.fromhex(link)), _message(2, root_id(link))) for link in span.links),
        _message(15, _number(3, _STATUS_ERROR if span.is_failure else _STATUS_OK)),
    )


def encode_request(resource: bytes, spans: Iterable[bytes], *, version: str) -> bytes:
    """Return an `ExportTraceServiceRequest` with what `encode_resource` and `encode_span` have returned."""
    scope = _message(1, _message(1, b"gatehouse"), _message(2, version.encode()))
    return _message(1, resource, _message(2, scope, *spans))


def rejected_spans(body: bytes) -> int:
    """Return how many spans the answer of a collector says it has rejected. An answer of another form has none."""
    try:
        partial = next((value for number, value in _fields(body) if number == 1), b"")
        if not isinstance(partial, bytes):
            return 0
        return next((value for number, value in _fields(partial) if number == 1 and isinstance(value, int)), 0)
    except IndexError:  # It is cut off, or no protocol buffer at all.
        return 0


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    if value < 1 << 7:
        return bytes((value,))
    digits = bytearray()
    while value >= 1 << 7:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _message(number: int, *parts: bytes) -> bytes:
    """Return a field with a length: a message, a string or bytes."""
    content = b"".join(parts)
    return _key(number, _LENGTH) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _key(number, _VARINT) + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def _attribute(number: int, name: str, value: Value) -> bytes:
    match value:
        case bool():
            encoded = _number(2, int(value))
        case int():
            encoded = _number(3, value)
        case float():
            encoded = _key(4, _FIXED64) + struct.pack("<d", value)
        case _:
            encoded = _message(1, value.encode("utf-8", "replace"))
    return _message(number, _message(1, name.encode()), _message(2, encoded))


def _fields(body: bytes) -> Iterable[tuple[int, int | bytes]]:
    """Yield the fields of a message that are numbers or have a length. Raises `IndexError` if it is cut off."""
    at = 0
    while at < len(body):
        key, at = _read_varint(body, at)
        if key & 7 == _VARINT:
            value, at = _read_varint(body, at)
            yield key >> 3, value
        elif key & 7 == _LENGTH:
            length, at = _read_varint(body, at)
            yield key >> 3, body[at : at + length]
            at += length
        else:  # Nothing in the answer has another type.
            return


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a number and where the rest begins. Raises `IndexError` if it is cut off or longer than 64 bits."""
    value = 0
    for place in range(_MAX_VARINT):
        digit = body[at + place]
        value |= (digit & 0x7F) << 7 * place
        if not digit & 0x80:
            return value, at + place + 1
    raise IndexError

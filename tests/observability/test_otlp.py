from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from gateway.observability.otlp import encode_request, encode_resource, encode_span, rejected_spans
from gateway.tracing import Span, SpanKind, root_id
from tests.observability.collector import values

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
TRACES = st.binary(min_size=16, max_size=16).map(bytes.hex)
NANOSECONDS = st.integers(0, 2**63)
ATTRIBUTES = st.dictionaries(
    TEXTS, TEXTS | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False), max_size=5
)
SPANS = st.builds(
    Span,
    name=TEXTS,
    trace=TRACES,
    id=st.binary(min_size=8, max_size=8),
    parent=st.binary(min_size=8, max_size=8) | st.just(b""),
    started=NANOSECONDS,
    ended=NANOSECONDS,
    kind=st.sampled_from(SpanKind),
    attributes=ATTRIBUTES,
    is_failure=st.booleans(),
    links=st.lists(TRACES, max_size=3).map(tuple),
)


@given(st.lists(SPANS, max_size=4), ATTRIBUTES)
def test_the_official_package_reads_what_is_encoded(spans: list[Span], about: dict[str, str]) -> None:
    body = encode_request(encode_resource(about), map(encode_span, spans), version="1.2")
    (found,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert values(found.resource.attributes) == about
    (scope,) = found.scope_spans
    assert (scope.scope.name, scope.scope.version) == ("gatehouse", "1.2")
    assert len(scope.spans) == len(spans)
    for span, read in zip(spans, scope.spans, strict=True):
        assert (read.trace_id.hex(), read.span_id, read.parent_span_id) == (span.trace, span.id, span.parent)
        assert (read.name, read.kind) == (span.name, span.kind)
        assert (read.start_time_unix_nano, read.end_time_unix_nano) == (span.started, span.ended)
        assert values(read.attributes) == span.attributes
        assert (read.status.code == Status.STATUS_CODE_ERROR) == span.is_failure
        assert [link.trace_id.hex() for link in read.links] == list(span.links)
        assert [link.span_id for link in read.links] == [root_id(each) for each in span.links]


@given(st.integers(0, 2**62), TEXTS)
def test_rejected_spans_are_read(rejected: int, reason: str) -> None:
    partial = ExportTracePartialSuccess(rejected_spans=rejected, error_message=reason)
    assert rejected_spans(ExportTraceServiceResponse(partial_success=partial).SerializeToString()) == rejected


@given(st.binary(max_size=100))
def test_an_answer_of_another_form_does_no_harm(body: bytes) -> None:
    assert rejected_spans(body) >= 0


def test_an_endless_number_is_no_answer() -> None:
    assert rejected_spans(b"\x0a\x0b\x08" + b"\xff" * 9 + b"\x01") >= 0
    assert rejected_spans(b"\x08" + b"\xff" * 65_000 + b"\x01") == 0
    assert rejected_spans(b"\x0a\xe8\x07\x08" + b"\xff" * 998 + b"\x01") == 0

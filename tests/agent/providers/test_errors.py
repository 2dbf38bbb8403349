from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from aiohttp import ClientConnectionError, ConnectionTimeoutError, SocketTimeoutError

from config import Secret
from gateway.agent.providers.errors import (
    ErrorResponse,
    ProviderFault,
    classify_fault,
    json_or_text,
    read_fault,
    spell_duration,
    translate_errors,
)
from gateway.errors import ProviderBusy, ProviderFailed


@pytest.mark.parametrize("status", [0, 301, 400, 401, 403, 404, 408, 409, 413, 418, 422, 429, 500, 501, 503, 529])
def test_every_error_response_becomes_ours(status: int) -> None:
    """With a body that says nothing."""
    with pytest.raises(ProviderFailed), translate_errors("p", "m"):
        raise ErrorResponse(read_fault("", status))


@pytest.mark.parametrize("error", [ConnectionTimeoutError(), ClientConnectionError(), ConnectionResetError()])
def test_errors_without_a_response_are_reported_as_unreachable(error: Exception) -> None:
    with pytest.raises(ProviderBusy, match="can't be reached"), translate_errors("p", "m"):
        raise error


@pytest.mark.parametrize("error", [SocketTimeoutError(), TimeoutError()])
def test_a_silent_connection_is_reported_as_such(error: Exception) -> None:
    with pytest.raises(ProviderBusy, match="sent nothing for too long"), translate_errors("p", "m"):
        raise error


def retry_after(**headers: str) -> float | None:
    return read_fault("", 429, headers).retry_after


def test_retry_after_is_read_in_every_format() -> None:
    assert retry_after() is None
    assert retry_after(**{"retry-after": "7"}) == 7
    assert retry_after(**{"retry-after-ms": "1500", "retry-after": "2"}) == 1.5
    assert retry_after(**{"retry-after": "-3"}) == 0
    assert retry_after(**{"retry-after": "soon"}) is None
    assert retry_after(**{"retry-after": "nan"}) is None
    assert retry_after(**{"retry-after": f"Fri, 31 Dec {10**20} 23:59:59 GMT"}) is None
    later = format_datetime(datetime.now(UTC) + timedelta(minutes=5), usegmt=True)
    assert 290 < (retry_after(**{"retry-after": later}) or 0) <= 300


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"code": "a", "type": "b", "message": "c", "param": null}}', "a b c"),
        (b'{"message": "c"}', "c"),
        (b'{"error": {"message": "c", "param": "d"}}', "c d"),
        (b'{"detail": [{"loc": ["body"]}]}', "{'detail': [{'loc': ['body']}]}"),
        (b'{"error": "out of memory"}', "out of memory"),
        (b" <html>Bad gateway</html>\n", "<html>Bad gateway</html>"),
        (b'["c"]', "['c']"),
        (b"\xff", "\ufffd"),
        (b"", ""),
    ],
)
def test_the_words_of_an_error_are_found_in_every_format(body: bytes, words: str) -> None:
    assert read_fault(json_or_text(body), 400) == ProviderFault(status=400, words=words)


def test_only_the_start_of_a_long_error_is_read() -> None:
    fault = read_fault(json_or_text(b"model " * 10_000), 400)
    assert len(fault.words) < 5_000
    assert fault.words.startswith("model model")


def test_an_error_within_a_stream_may_have_a_status_as_its_code() -> None:
    assert read_fault({"code": 502}).status == read_fault({"code": "502"}).status == 502
    assert read_fault({"code": "overloaded"}).status == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 second"), (5, "5 seconds"), (60, "1 minute"), (89, "1 minute"), (7200, "2 hours"), (86_400, "1 day")],
)
def test_a_duration_is_spelled_in_its_largest_unit(seconds: float, words: str) -> None:
    assert spell_duration(seconds) == words


def test_no_sentence_contains_the_endpoints_own_words() -> None:
    for status in (0, 200, 301, 400, 401, 402, 403, 404, 413, 418, 422, 429, 500, 501, 503, 529):
        assert "canary" not in str(classify_fault(ProviderFault(status=status, words="canary"), "m"))


def test_the_details_have_the_endpoints_own_words_without_the_key() -> None:
    body = {"error": {"code": "invalid_api_key", "message": "Incorrect API key provided: sk-canary."}}
    with pytest.raises(ProviderFailed) as caught, translate_errors("openai", "gpt", api_key=Secret("sk-canary")):
        raise ErrorResponse(read_fault(body, 401))
    assert caught.value.details == "openai/gpt, HTTP 401: invalid_api_key Incorrect API key provided: ***."


def test_the_details_say_why_there_was_no_response() -> None:
    with pytest.raises(ProviderFailed) as caught, translate_errors("openai", "gpt"):
        raise ClientConnectionError from ConnectionRefusedError(111, "Connection refused")
    assert caught.value.details == "openai/gpt, no response: ConnectionRefusedError: [Errno 111] Connection refused"

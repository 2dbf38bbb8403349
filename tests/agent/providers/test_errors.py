from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import ModuleType

import anthropic
import httpx2
import openai
import pytest

from config import Secret
from gateway.agent.providers.errors import ProviderFault, classify_fault, spell_duration, translate_errors
from gateway.errors import ProviderBusy, ProviderFailed

SDKS = [openai, anthropic]


def status_errors(sdk: ModuleType) -> list[type[Exception]]:
    found: list[type[Exception]] = sdk.APIStatusError.__subclasses__()
    return found


@pytest.mark.parametrize("sdk", SDKS)
def test_every_error_of_the_sdk_becomes_ours(sdk: ModuleType) -> None:
    """With the status that it stands for, and with a body that says nothing."""
    request = httpx2.Request("POST", "http://localhost/")
    assert len(status_errors(sdk)) >= 8
    for kind in status_errors(sdk):
        status = getattr(kind, "status_code", 500)
        response = httpx2.Response(status if isinstance(status, int) else 500, request=request)
        with pytest.raises(ProviderFailed), translate_errors("p", "m", sdk.APIError):
            raise kind("x", response=response, body=None)  # type: ignore[call-arg]  # All SDK's status errors take these.


@pytest.mark.parametrize("sdk", SDKS)
def test_errors_without_a_response_are_reported_as_unreachable(sdk: ModuleType) -> None:
    request = httpx2.Request("POST", "http://localhost/")
    for error in (sdk.APITimeoutError(request=request), sdk.APIConnectionError(request=request)):
        with pytest.raises(ProviderBusy, match="can't be reached"), translate_errors("p", "m", sdk.APIError):
            raise error


def retry_after(**headers: str) -> float | None:
    response = httpx2.Response(429, headers=headers, request=httpx2.Request("POST", "http://localhost/"))
    with pytest.raises(ProviderBusy) as caught, translate_errors("p", "m", openai.APIError):
        raise openai.RateLimitError("x", response=response, body=None)
    return caught.value.retry_after


def test_retry_after_is_read_in_every_format() -> None:
    assert retry_after() is None
    assert retry_after(**{"retry-after": "7"}) == 7
    assert retry_after(**{"retry-after-ms": "1500", "retry-after": "2"}) == 1.5
    assert retry_after(**{"retry-after": "-3"}) == 0
    assert retry_after(**{"retry-after": "soon"}) is None
    assert retry_after(**{"retry-after": "nan"}) is None
    later = format_datetime(datetime.now(UTC) + timedelta(minutes=5), usegmt=True)
    assert 290 < (retry_after(**{"retry-after": later}) or 0) <= 300


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
    response = httpx2.Response(401, request=httpx2.Request("POST", "http://localhost/"))
    body = {"error": {"code": "invalid_api_key", "message": "Incorrect API key provided: sk-canary."}}
    with (
        pytest.raises(ProviderFailed) as caught,
        translate_errors("openai", "gpt", openai.APIError, api_key=Secret("sk-canary")),
    ):
        raise openai.AuthenticationError("x", response=response, body=body)
    assert caught.value.details == "openai/gpt, HTTP 401: invalid_api_key Incorrect API key provided: ***."


def test_the_details_say_why_there_was_no_response() -> None:
    request = httpx2.Request("POST", "http://localhost/")
    with pytest.raises(ProviderFailed) as caught, translate_errors("openai", "gpt", openai.APIError):
        raise openai.APIConnectionError(request=request) from ConnectionRefusedError(111, "Connection refused")
    assert caught.value.details.startswith("openai/gpt, no response: ConnectionRefusedError(111")

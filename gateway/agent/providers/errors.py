"""Turns the errors of model endpoints into ours: one sentence for the person, the details for the log.

Both APIs describe an error in the same form (a status, a body, headers), so one table serves both.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import structlog
from aiohttp import ClientError, ConnectionTimeoutError

from config import Secret
from gateway.errors import ContextTooLong, ModelUnavailable, ProviderBusy, ProviderFailed
from gateway.text import excerpt

log = structlog.get_logger()

_MAX_LOGGED_CHARS = 2_000
_MAX_WORDS_CHARS = 2_000
"""Characters of an error that are read: the patterns below would take seconds for a long page."""
_MAX_SHOWN_CHARS = 500

_TIMED_OUT = "`{model}` has sent nothing for too long. Please try again in a moment."
_UNREACHABLE = "`{model}` can't be reached right now. Please try again in a moment."
_OVERLOADED = "`{model}` is overloaded right now. Please try again in a moment."
_RATE_LIMITED = "`{model}` is rate-limited. Try again in {wait}."
_INVALID_RESPONSE = "`{model}` sent a response that I can't read. The bot's operator can find it in the log."
_TOO_LONG = "This session is too long for `{model}`. Send `/new` to start a new one."
_NO_CREDIT = "The account for `{model}` is out of credit or quota. Ask the bot's operator to fix it."
_BAD_KEY = "The API key for `{model}` was rejected. Ask the bot's operator to fix it."
_FORBIDDEN = "The API key for `{model}` doesn't give access to it. Ask the bot's operator to fix it."
_NO_MODEL = "The provider has no model named `{model}`. Ask the bot's operator to fix it."
_NO_ENDPOINT = "The provider's address for `{model}` is wrong. Ask the bot's operator to check `base_url`."
_DECLINED = "The provider of `{model}` declined to answer that."
_REJECTED = "`{model}` rejected this request. The bot's operator can find the reason in the log."

# Endpoints disagree about statuses, but their messages and codes are recognisable.
_SAYS_TOO_LONG = re.compile(
    r"context[_ ](length|window|size|limit)|prompt (is )?too long|maximum (context|prompt|input) length"
    r"|input (is )?too long|exceed_context_size|request[_ ]too[_ ]large|reduce the length of the messages",
    re.IGNORECASE,
)
_SAYS_NO_CREDIT = re.compile(
    r"insufficient_quota|billing|credit balance|exceeded your current quota|insufficient (balance|credits)",
    re.IGNORECASE,
)
_SAYS_POLICY = re.compile(r"content_policy|content_filter|safety system", re.IGNORECASE)
_SAYS_BAD_KEY = re.compile(r"authentication_error|invalid_api_key", re.IGNORECASE)
_SAYS_NO_MODEL = re.compile(
    r"model_not_found|not_found_error|model\b.*(not found|does not exist|not exist)", re.IGNORECASE
)
_SAYS_OVERLOADED = re.compile(r"overloaded|rate_limit|api_error|server_error|timeout|unavailable", re.IGNORECASE)

_NUMBER = re.compile(r"-?\d{1,9}(\.\d*)?")

_TRANSIENT = {408, 409, 425, 429}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFault:
    """An endpoint's error. `status` is 0 if there was no response, or if the error came within a stream."""

    status: int = 0
    words: str = ""
    """Its message and its codes."""
    retry_after: float | None = None


class ErrorResponse(Exception):
    """An endpoint has answered with an error, or has sent one within a stream."""

    def __init__(self, fault: ProviderFault) -> None:
        super().__init__(f"status {fault.status}")
        self.fault = fault


@contextmanager
def translate_errors(provider: str, model: str, *, api_key: Secret | None = None) -> Iterator[None]:
    """Turn the errors of a request, and those that an invalid response leads to, into ours.

    A provider may repeat the `api_key` in its error. The details never contain it.
    """
    try:
        yield
    except ProviderFailed:
        raise
    except (ErrorResponse, ClientError, OSError) as error:
        # The timeouts for the next bytes and for the next event are equal, so either may come first.
        if isinstance(error, TimeoutError) and not isinstance(error, ConnectionTimeoutError):
            log.warning("model_timed_out", provider=provider, model=model)
            raise ProviderBusy(_TIMED_OUT.format(model=model)) from error
        fault = error.fault if isinstance(error, ErrorResponse) else ProviderFault()
        ours = classify_fault(fault, model)
        reason = fault.words or _describe(error.__cause__ or error)
        status = f"HTTP {fault.status}" if fault.status else "no response"
        shown = reason.replace(api_key.reveal(), "***") if api_key is not None else reason
        ours.details = f"{provider}/{model}, {status}: {excerpt(shown, _MAX_SHOWN_CHARS)}"
        # A busy model is retried, and the end of the retries is logged as a warning.
        (log.info if isinstance(ours, ProviderBusy) else log.warning)(
            "model_failed",
            provider=provider,
            model=model,
            status=fault.status,
            retry_after=fault.retry_after,
            reason=excerpt(reason, _MAX_LOGGED_CHARS),
        )
        raise ours from error
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as invalid:
        log.warning("model_response_invalid", provider=provider, model=model, exc_info=invalid)
        raise ProviderBusy(_INVALID_RESPONSE.format(model=model)) from invalid


def _describe(error: BaseException) -> str:
    """Return the kind and the message. The `repr` of some of aiohttp's errors has the headers of the request."""
    return f"{type(error).__name__}: {error}"


def json_or_text(raw: bytes) -> object:
    """Return the content of an error: its JSON, or its text if that is not JSON."""
    text = raw.decode("utf-8", "replace").strip()
    try:
        content: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return content


def read_fault(body: object, status: int = 0, headers: Mapping[str, str] | None = None) -> ProviderFault:
    """Read an error response, or the error within a stream."""
    inner: Mapping[str, object] = {}
    if isinstance(body, dict):  # The error is the body, or is under its key `error`.
        given = body.get("error", body)
        inner = given if isinstance(given, dict) else {"message": str(given)}
    if not status:  # An error within a stream may have a status as its code.
        code = str(inner.get("code", ""))
        status = int(code) if code.isdecimal() else 0
    words = " ".join(str(inner[key]) for key in ("code", "type", "message", "param") if inner.get(key))
    # Some servers use other keys, such as `detail`.
    words = words or str(body or "")
    return ProviderFault(status=status, words=words[:_MAX_WORDS_CHARS], retry_after=_retry_after(headers or {}))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Read the time to wait: in milliseconds, in seconds, or until a date."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        if _NUMBER.fullmatch(value := headers.get(name, "")):
            return max(0.0, float(value) / unit)
    try:
        then = parsedate_to_datetime(headers.get("retry-after", ""))
    except (TypeError, ValueError, OverflowError):
        return None
    aware = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())


def classify_fault(fault: ProviderFault, model: str) -> ProviderFailed:  # noqa: PLR0911 - it is a table.
    """Choose our error. The endpoint's words count more than its status, on which endpoints agree less."""
    status, words = fault.status, fault.words
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or _SAYS_TOO_LONG.search(words):
        return ContextTooLong(_TOO_LONG.format(model=model))
    if status == HTTPStatus.PAYMENT_REQUIRED or _SAYS_NO_CREDIT.search(words):
        return ModelUnavailable(_NO_CREDIT.format(model=model))
    if status == HTTPStatus.UNAUTHORIZED or _SAYS_BAD_KEY.search(words):
        return ModelUnavailable(_BAD_KEY.format(model=model))
    if status in _TRANSIENT or status > HTTPStatus.NOT_IMPLEMENTED or status == HTTPStatus.INTERNAL_SERVER_ERROR:
        if fault.retry_after and fault.retry_after > 1:
            sentence = _RATE_LIMITED.format(model=model, wait=spell_duration(fault.retry_after))
            return ProviderBusy(sentence, retry_after=fault.retry_after)
        return ProviderBusy(_OVERLOADED.format(model=model), retry_after=fault.retry_after)
    if _SAYS_POLICY.search(words):
        return ProviderFailed(_DECLINED.format(model=model))
    if status == HTTPStatus.FORBIDDEN:
        return ModelUnavailable(_FORBIDDEN.format(model=model))
    if _SAYS_NO_MODEL.search(words):
        return ModelUnavailable(_NO_MODEL.format(model=model))
    if status == HTTPStatus.NOT_FOUND or HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return ModelUnavailable(_NO_ENDPOINT.format(model=model))
    if not words and status == 0:
        return ProviderBusy(_UNREACHABLE.format(model=model))
    if status == 0 or _SAYS_OVERLOADED.search(words):
        return ProviderBusy(_OVERLOADED.format(model=model))
    return ProviderFailed(_REJECTED.format(model=model))


def spell_duration(seconds: float) -> str:
    """Spell a duration in the largest unit that it fills, such as `2 hours`."""
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if (count := round(seconds / size)) and seconds >= size:
            return f"{count} {unit}{'' if count == 1 else 's'}"
    count = max(1, round(seconds))
    return f"{count} second{'' if count == 1 else 's'}"

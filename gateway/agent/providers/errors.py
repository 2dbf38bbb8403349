"""What goes wrong at a model's endpoint, told to the person in one sentence and to the log in full.

Both SDKs raise errors of the same make (a status, a body, headers), so that one table of reasons serves them.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import structlog

from gateway.errors import ContextTooLong, ModelUnavailable, ProviderBusy, ProviderFailed
from gateway.text import excerpt

__all__ = ["CUT_OFF", "ProviderFault", "classify_fault", "spell_duration", "translate_errors"]

log = structlog.get_logger()

_LONGEST_REASON = 2_000

CUT_OFF = "The connection to the model `{model}` broke off before it had finished. Please ask again."
_SILENT = "The model `{model}` has not said anything for too long. Please ask again in a moment."
_OUT_OF_REACH = "The model `{model}` cannot be reached right now. Please ask again in a moment."
_BUSY = "The model `{model}` is overloaded right now. Please ask again in a moment."
_ASKS_TO_WAIT = "The model `{model}` is busy, and asks to be left alone for {span}. Please ask again after that."
_GARBLED = "The model `{model}` answered with something that cannot be understood. Its operator can find it in the log."
_TOO_LONG = "This conversation has become too long for the model `{model}`. `/new` starts a fresh one."
_NO_CREDIT = "The account for the model `{model}` has no credit or quota left. Its operator has to see to that."
_BAD_KEY = "The key for the model `{model}` is not accepted. Its operator has to see to that."
_NOT_ALLOWED = "The key for the model `{model}` does not allow its use. Its operator has to see to that."
_UNKNOWN = "There is no model `{model}` at its endpoint. Its operator has to see to that."
_NO_ENDPOINT = "There is no such endpoint for the model `{model}`. Its operator has to check `base_url`."
_DECLINED = "The provider of the model `{model}` declined to answer that."
_REFUSED = "The model `{model}` could not take this request. Its operator can find the reason in the log."

_CONTEXT = re.compile(
    r"context[_ ](length|window|size|limit)|prompt (is )?too long|maximum (context|prompt|input) length"
    r"|input (is )?too long|exceed_context_size|request[_ ]too[_ ]large|reduce the length of the messages",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    r"insufficient_quota|billing|credit balance|exceeded your current quota|insufficient (balance|credits)",
    re.IGNORECASE,
)
_POLICY = re.compile(r"content_policy|content_filter|safety system", re.IGNORECASE)
_KEY = re.compile(r"authentication_error|invalid_api_key", re.IGNORECASE)
_NO_MODEL = re.compile(r"model_not_found|not_found_error|model\b.*(not found|does not exist|not exist)", re.IGNORECASE)
_OVERLOAD = re.compile(r"overloaded|rate_limit|api_error|server_error|timeout|unavailable", re.IGNORECASE)

_NUMBER = re.compile(r"-?\d{1,9}(\.\d*)?")

_TRANSIENT = {408, 409, 425, 429}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFault:
    """What an endpoint said. `status` is 0 where there was no answer, or the stream had begun well."""

    status: int = 0
    words: str = ""
    """Its message and its codes."""
    retry_after: float | None = None


@contextmanager
def translate_errors(provider: str, model: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn the errors of an SDK, `kinds`, and what garbled answers lead to, into ours."""
    try:
        yield
    except ProviderFailed:
        raise
    except TimeoutError as late:
        raise _silent(provider, model) from late
    except kinds as error:
        raise (_silent(provider, model) if _is_silence(error) else _told(error, provider, model)) from error
    except (ValueError, TypeError, AttributeError, LookupError) as garbled:
        log.warning("model_garbled", provider=provider, model=model, exc_info=garbled)
        raise ProviderBusy(_GARBLED.format(model=model)) from garbled


def _is_silence(error: BaseException | None) -> bool:
    """Tell whether the connection's clock has struck, which runs beside our own and may be the first to do so."""
    from aiohttp import SocketTimeoutError  # noqa: PLC0415 - it is here when there is an error, and else not needed.

    return isinstance(error, SocketTimeoutError) or (error is not None and _is_silence(error.__cause__))


def _silent(provider: str, model: str) -> ProviderFailed:
    log.warning("model_silent", provider=provider, model=model)
    return ProviderBusy(_SILENT.format(model=model))


def _told(error: Exception, provider: str, model: str) -> ProviderFailed:
    fault = _fault(error)
    ours = classify_fault(fault, model)
    tell = log.info if isinstance(ours, ProviderBusy) else log.warning  # Whoever asks again tells how it ended.
    tell(
        "model_failed",
        provider=provider,
        model=model,
        status=fault.status,
        retry_after=fault.retry_after,
        reason=excerpt(fault.words or repr(error.__cause__ or error), _LONGEST_REASON),
    )
    return ours


def classify_fault(fault: ProviderFault, model: str) -> ProviderFailed:
    """Choose our error by what the endpoint said; its words go before its status, on which endpoints agree less."""
    status, words = fault.status, fault.words
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or _CONTEXT.search(words):
        return ContextTooLong(_TOO_LONG.format(model=model))
    if status == HTTPStatus.PAYMENT_REQUIRED or _QUOTA.search(words):
        return ModelUnavailable(_NO_CREDIT.format(model=model))
    if status == HTTPStatus.UNAUTHORIZED or _KEY.search(words):
        return ModelUnavailable(_BAD_KEY.format(model=model))
    if status in _TRANSIENT or status > HTTPStatus.NOT_IMPLEMENTED or status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return _busy(fault, model)
    return _refusal(fault, model)


def _refusal(fault: ProviderFault, model: str) -> ProviderFailed:
    status, words = fault.status, fault.words
    if _POLICY.search(words):
        return ProviderFailed(_DECLINED.format(model=model))
    if status == HTTPStatus.FORBIDDEN:
        return ModelUnavailable(_NOT_ALLOWED.format(model=model))
    if _NO_MODEL.search(words):
        return ModelUnavailable(_UNKNOWN.format(model=model))
    if status == HTTPStatus.NOT_FOUND or HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return ModelUnavailable(_NO_ENDPOINT.format(model=model))
    if status == 0 or _OVERLOAD.search(words):
        return ProviderBusy(_OUT_OF_REACH.format(model=model) if not words else _BUSY.format(model=model))
    return ProviderFailed(_REFUSED.format(model=model))


def _busy(fault: ProviderFault, model: str) -> ProviderBusy:
    if fault.retry_after and fault.retry_after > 1:
        sentence = _ASKS_TO_WAIT.format(model=model, span=spell_duration(fault.retry_after))
        return ProviderBusy(sentence, retry_after=fault.retry_after)
    return ProviderBusy(_BUSY.format(model=model), retry_after=fault.retry_after)


def spell_duration(seconds: float) -> str:
    """Say a duration in the largest unit that it fills."""
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if (count := round(seconds / size)) and seconds >= size:
            return f"{count} {unit}{'' if count == 1 else 's'}"
    count = max(1, round(seconds))
    return f"{count} second{'' if count == 1 else 's'}"


def _fault(error: Exception) -> ProviderFault:
    """Read an SDK's error. One without a status never had an answer, or came in the middle of a stream."""
    status = getattr(error, "status_code", 0)
    body = getattr(error, "body", None)
    response = getattr(error, "response", None)
    if status in {0, HTTPStatus.OK}:
        code = str(_inner(body).get("code", ""))
        status = int(code) if code.isdecimal() else 0
    return ProviderFault(status=status, words=_words(body), retry_after=_retry_after(getattr(response, "headers", {})))


def _words(body: object) -> str:
    inner = _inner(body)
    said = [str(inner[key]) for key in ("code", "type", "message") if inner.get(key)]
    return " ".join(said) if inner else str(body or "")


def _inner(body: object) -> Mapping[str, object]:
    """Find the error in a body: bare, or under the key `error`."""
    if not isinstance(body, dict):
        return {}
    inner = body.get("error", body)
    return inner if isinstance(inner, dict) else {"message": str(inner)}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Read how long we shall wait: in milliseconds, in seconds, or until a date."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        if _NUMBER.fullmatch(asked := headers.get(name, "")):
            return max(0.0, float(asked) / unit)
    try:
        then = parsedate_to_datetime(headers.get("retry-after", ""))
    except (TypeError, ValueError):
        return None
    aware = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())

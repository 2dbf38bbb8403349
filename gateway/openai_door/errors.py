"""Errors in OpenAI's format: requests that are refused, and turns that end without an answer."""

from http import HTTPStatus

from gateway.errors import ContextTooLong, ProviderFailed, Refused
from gateway.http.responses import HttpError
from gateway.openai_door.types import ErrorInfo
from gateway.sessions.entries import FailureCause, TurnOutcome
from gateway.turns.usage import LimitReached

DO_NOT_RETRY = {"x-should-retry": "false"}
"""OpenAI's clients repeat a request that failed, unless this header says otherwise. The gateway has retried already."""

_LATER = {"Retry-After": "5"}


def refusal(
    message: str, *, param: str | None = None, code: str | None = None, status: HTTPStatus = HTTPStatus.BAD_REQUEST
) -> HttpError:
    """Return the error for a request that cannot be carried out as it is. `param` is the field to change."""
    extra = {"type": "invalid_request_error", "param": param, "code": code}
    return HttpError(status, message, headers=DO_NOT_RETRY, extra=extra)


def too_busy(message: str) -> HttpError:
    extra = {"type": "requests", "code": "rate_limit_exceeded"}
    return HttpError(HTTPStatus.TOO_MANY_REQUESTS, message, headers=_LATER, extra=extra)


def unavailable(message: str) -> HttpError:
    """Return the error for a request that the gateway cannot take now. Clients repeat it."""
    return HttpError(HTTPStatus.SERVICE_UNAVAILABLE, message, headers=_LATER)


_FAILURES = {
    FailureCause.MODEL: (HTTPStatus.BAD_GATEWAY, "server_error", "model_failed"),
    FailureCause.LIMIT: (HTTPStatus.TOO_MANY_REQUESTS, "insufficient_quota", "insufficient_quota"),
    FailureCause.TIMEOUT: (HTTPStatus.GATEWAY_TIMEOUT, "server_error", "timeout"),
    FailureCause.REFUSED: (HTTPStatus.CONFLICT, "invalid_request_error", "refused"),
    FailureCause.BUG: (HTTPStatus.INTERNAL_SERVER_ERROR, "server_error", "server_error"),
}


def turn_failed(cause: str, message: str) -> HttpError:
    """Return the error for a turn that has failed. `cause` is a `FailureCause`, or empty if it is not known."""
    known = FailureCause(cause) if cause in set(FailureCause) else FailureCause.BUG
    status, kind, code = _FAILURES[known]
    return HttpError(status, message, headers=DO_NOT_RETRY, extra={"type": kind, "code": code})


def turn_ended(outcome: TurnOutcome, cause: str, message: str) -> HttpError:
    """Return the error for a turn that has ended without an answer."""
    if outcome is TurnOutcome.FAILED:
        return turn_failed(cause, message or "The turn failed.")
    return refusal(message or "The turn was stopped.", code="turn_stopped", status=HTTPStatus.CONFLICT)


def failure_of(error: ProviderFailed | Refused) -> HttpError:
    """Return the error for a stateless request that has failed."""
    if isinstance(error, ContextTooLong):
        return refusal(str(error), param="messages", code="context_length_exceeded")
    if isinstance(error, ProviderFailed):
        return turn_failed(FailureCause.MODEL, str(error))
    return turn_failed(FailureCause.LIMIT if isinstance(error, LimitReached) else FailureCause.REFUSED, str(error))


def error_info(error: HttpError) -> ErrorInfo:
    """Return an error as it is sent in a stream that has begun."""

    def text(name: str) -> str | None:
        value = error.extra.get(name)
        return None if value is None else str(value)

    return ErrorInfo(message=str(error), type=text("type") or "server_error", param=text("param"), code=text("code"))

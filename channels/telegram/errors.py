"""Translates Telegram's refusals, and the errors of the connection, into the gateway's errors."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

from aiohttp import ClientConnectorError, ClientError, ConnectionTimeoutError

from config import Secret
from gateway.errors import AuthRejected, ChannelError, Transient, Undeliverable


class MarkupRefused(Undeliverable):
    """Telegram could not parse the formatting. The plain text may still be accepted."""


class BadResponse(Exception):
    """Telegram's response could not be parsed."""


class Refusal(Exception):
    """Telegram's answer to a call that failed: https://core.telegram.org/bots/api#making-requests."""

    def __init__(
        self, status: int, description: str, *, retry_after: int | None = None, migrate_to_chat_id: int | None = None
    ) -> None:
        super().__init__(f"{status} {description}")
        self.status = status
        self.description = description
        self.retry_after = retry_after
        self.migrate_to_chat_id = migrate_to_chat_id

    @property
    def is_bad_request(self) -> bool:
        """Whether the description says what is wrong with the request."""
        return self.status == HTTPStatus.BAD_REQUEST and not self.retry_after and not self.migrate_to_chat_id


_SAYS = "Telegram says: {0.description}"
_GIVES_NO_REASON = "Telegram answered with status {0.status}, without a reason."
_BROKEN = "The connection to Telegram broke."

STATUSES: Mapping[int, tuple[type[ChannelError], str]] = {
    HTTPStatus.UNAUTHORIZED: (
        AuthRejected,
        "Telegram rejected the bot token. Ask @BotFather for the current one.",
    ),
    HTTPStatus.CONFLICT: (
        Transient,
        "Another program is receiving this bot's messages. Stop it, or use a separate bot for each program.",
    ),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: (Undeliverable, "The message is too large for Telegram."),
    # Without the usual `retry_after`.
    HTTPStatus.TOO_MANY_REQUESTS: (Transient, "Telegram's rate limit was hit."),
}
"""Statuses of refusals, with our error and its message. Other refusals quote Telegram."""

TABLE: Mapping[type[Exception], str] = {
    # Some timeouts are `ClientError`s as well.
    TimeoutError: "Telegram can't be reached (Request timeout error).",
    ClientError: "Telegram can't be reached ({1}: {0}).",
    BadResponse: "Telegram sent a response that couldn't be parsed.",
    # aiohttp does not wrap these: a broken socket, or a text that cannot be encoded.
    OSError: _BROKEN,
    UnicodeError: _BROKEN,
}
"""Errors of the connection. All are transient. The first class that matches applies."""

# "entit" covers "can't parse entities" as well as limits on entities, such as ENTITIES_TOO_LONG.
_MARKUP_PROBLEMS = ("entit", "message is too long", "text must be non-empty", "text is empty")
_TRANSLATED: tuple[type[Exception], ...] = (Refusal, *TABLE)
_NEVER_CONNECTED = (ClientConnectorError, ConnectionTimeoutError)


@contextmanager
def translate_errors(token: Secret, *, is_send: bool = False) -> Iterator[None]:
    """Raise only `ChannelError`s, none of which contains `token`.

    Set `is_send` for calls that post a message: their errors then say whether Telegram may have received it, because
    a retry could show the message twice.
    """
    try:
        yield
    except _TRANSLATED as error:
        # aiohttp quotes URLs in its errors, and the URL of every Bot API call contains the token.
        leaks = token.reveal() in f"{error}{error!r}{error.__cause__}{error.__cause__!r}"
        raise translate(error, token, is_send=is_send) from (None if leaks else error)


def translate(error: Exception, token: Secret, *, is_send: bool = False) -> ChannelError:
    if isinstance(error, Refusal):
        return _translate_refusal(error, token)
    template = next(TABLE[kind] for kind in TABLE if isinstance(error, kind))
    sentence = template.format(error, type(error).__name__).replace(token.reveal(), "***")
    # Telegram may have received the request, unless no connection was ever made.
    return Transient(sentence, may_have_arrived=is_send and not isinstance(error, _NEVER_CONNECTED))


def _translate_refusal(refusal: Refusal, token: Secret) -> ChannelError:
    if refusal.retry_after:
        sentence = f"Telegram's rate limit was hit. It asks to wait {refusal.retry_after} s."
        return Transient(sentence, retry_after=float(refusal.retry_after))
    is_transient = refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    quote = _SAYS if refusal.description else _GIVES_NO_REASON
    reaction, template = STATUSES.get(refusal.status, (Transient if is_transient else Undeliverable, quote))
    sentence = template.format(refusal).replace(token.reveal(), "***")
    if refusal.is_bad_request and any(problem in refusal.description.lower() for problem in _MARKUP_PROBLEMS):
        return MarkupRefused(sentence)
    return reaction(sentence)

"""What aiogram raises, as what the gateway does about it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from aiogram import exceptions as theirs
from aiohttp import ClientConnectorError, ConnectionTimeoutError

from config import Secret
from gateway.errors import AuthRejected, ChannelError, Transient, Undeliverable

__all__ = ["TABLE", "MarkupRefused", "translate", "translated"]


class MarkupRefused(Undeliverable):
    """Telegram cannot make sense of the formatting; the plain text may still pass."""


_SAYS = "Telegram says: {0.message}"
_FAILED = "The call to Telegram failed."
_BROKEN = "The connection to Telegram broke."

TABLE: Mapping[type[Exception], tuple[type[ChannelError], str]] = {
    theirs.TelegramUnauthorizedError: (
        AuthRejected,
        "Telegram refused the bot's token. @BotFather shows the one that is valid now.",
    ),
    theirs.TelegramConflictError: (
        Transient,
        "Another program is receiving this bot's messages. Stop it, or give each its own bot.",
    ),
    theirs.TelegramRetryAfter: (Transient, "Telegram asked for a pause of {0.retry_after} s."),
    theirs.TelegramNetworkError: (Transient, "Telegram cannot be reached ({0.message})."),
    theirs.TelegramServerError: (Transient, _SAYS),
    theirs.RestartingTelegram: (Transient, _SAYS),
    theirs.ClientDecodeError: (Transient, "Telegram's answer could not be read."),
    theirs.TelegramBadRequest: (Undeliverable, _SAYS),
    theirs.TelegramNotFound: (Undeliverable, _SAYS),
    theirs.TelegramForbiddenError: (Undeliverable, _SAYS),
    theirs.TelegramMigrateToChat: (Undeliverable, _SAYS),
    theirs.TelegramEntityTooLarge: (Undeliverable, "Telegram found the message too large."),
    theirs.TelegramAPIError: (Undeliverable, _SAYS),
    # What only a dispatcher or a filter raises, neither of which is used here.
    theirs.CallbackAnswerException: (Undeliverable, _FAILED),
    theirs.SceneException: (Undeliverable, _FAILED),
    theirs.UnsupportedKeywordArgument: (Undeliverable, _FAILED),
    theirs.DataNotDictLikeError: (Undeliverable, _FAILED),
    theirs.DetailedAiogramError: (Undeliverable, _FAILED),
    theirs.AiogramError: (Undeliverable, _FAILED),
    # What slips through aiogram: a broken socket, an answer in no known encoding.
    OSError: (Transient, _BROKEN),
    UnicodeError: (Transient, _BROKEN),
}

_MARKUP_TROUBLES = ("entit", "message is too long", "text must be non-empty", "text is empty")
"""The first: it can't parse entities, or there is one that Telegram itself refuses, like ENTITIES_TOO_LONG."""

_UNKNOWN_OUTCOME = (theirs.TelegramNetworkError, theirs.ClientDecodeError, OSError, UnicodeError)
_NEVER_CONNECTED = (ClientConnectorError, ConnectionTimeoutError)


@contextmanager
def translated(token: Secret, *, is_send: bool = False) -> Iterator[None]:
    """Let only `ChannelError`s out, and `token` with none of them: aiohttp quotes URLs, and Telegram's hold it.

    What `is_send` shows a message that it might show twice: then it matters whether Telegram may have got it.
    """
    try:
        yield
    except (theirs.AiogramError, OSError, UnicodeError) as error:
        leaks = token.reveal() in f"{error}{error!r}{error.__cause__}{error.__cause__!r}"
        raise translate(error, token, is_send=is_send) from (None if leaks else error)


def translate(error: Exception, token: Secret, *, is_send: bool = False) -> ChannelError:
    reaction, template = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    sentence = template.format(error).replace(token.reveal(), "***")
    if isinstance(error, theirs.TelegramRetryAfter):
        return Transient(sentence, retry_after=float(error.retry_after))
    if isinstance(error, theirs.TelegramBadRequest) and any(text in error.message.lower() for text in _MARKUP_TROUBLES):
        return MarkupRefused(sentence)
    if reaction is Transient:
        return Transient(sentence, may_have_arrived=is_send and _may_have_arrived(error))
    return reaction(sentence)


def _may_have_arrived(error: Exception) -> bool:
    """Tell whether Telegram may have taken a request: it has neither refused it nor been out of reach."""
    return isinstance(error, _UNKNOWN_OUTCOME) and not isinstance(error.__cause__, _NEVER_CONNECTED)

"""Translates aiogram's exceptions into the gateway's errors."""

from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager

from aiogram import exceptions as theirs
from aiogram.types import Message
from aiohttp import ClientConnectorError, ConnectionTimeoutError

from config import Secret
from gateway.errors import AuthRejected, ChannelError, Transient, Undeliverable


class MarkupRefused(Undeliverable):
    """Telegram could not parse the formatting. The plain text may still be accepted."""


_SAYS = "Telegram says: {0.message}"
_FAILED = "The call to Telegram failed."
_BROKEN = "The connection to Telegram broke."

TABLE: Mapping[type[Exception], tuple[type[ChannelError], str]] = {
    theirs.TelegramUnauthorizedError: (
        AuthRejected,
        "Telegram rejected the bot token. Ask @BotFather for the current one.",
    ),
    theirs.TelegramConflictError: (
        Transient,
        "Another program is receiving this bot's messages. Stop it, or use a separate bot for each program.",
    ),
    theirs.TelegramRetryAfter: (Transient, "Telegram's rate limit was hit. It asks to wait {0.retry_after} s."),
    theirs.TelegramNetworkError: (Transient, "Telegram can't be reached ({0.message})."),
    theirs.TelegramServerError: (Transient, _SAYS),
    theirs.RestartingTelegram: (Transient, _SAYS),
    theirs.ClientDecodeError: (Transient, "Telegram sent a response that couldn't be parsed."),
    theirs.TelegramBadRequest: (Undeliverable, _SAYS),
    theirs.TelegramNotFound: (Undeliverable, _SAYS),
    theirs.TelegramForbiddenError: (Undeliverable, _SAYS),
    theirs.TelegramMigrateToChat: (Undeliverable, _SAYS),
    theirs.TelegramEntityTooLarge: (Undeliverable, "The message is too large for Telegram."),
    theirs.TelegramAPIError: (Undeliverable, _SAYS),
    # Only aiogram's dispatcher and filters raise these. This channel uses neither.
    theirs.CallbackAnswerException: (Undeliverable, _FAILED),
    theirs.SceneException: (Undeliverable, _FAILED),
    theirs.UnsupportedKeywordArgument: (Undeliverable, _FAILED),
    theirs.DataNotDictLikeError: (Undeliverable, _FAILED),
    theirs.DetailedAiogramError: (Undeliverable, _FAILED),
    theirs.AiogramError: (Undeliverable, _FAILED),
    # aiogram does not wrap these: a broken socket, or a response in an unknown encoding.
    OSError: (Transient, _BROKEN),
    UnicodeError: (Transient, _BROKEN),
}
"""Each of aiogram's exceptions, with our error and its message. The most specific class in the MRO applies."""

# "entit" covers "can't parse entities" as well as limits on entities, such as ENTITIES_TOO_LONG.
_MARKUP_PROBLEMS = ("entit", "message is too long", "text must be non-empty", "text is empty")

_OUTCOME_UNKNOWN = (theirs.TelegramNetworkError, theirs.ClientDecodeError, OSError, UnicodeError)
_NEVER_CONNECTED = (ClientConnectorError, ConnectionTimeoutError)


@contextmanager
def translate_errors(token: Secret, *, is_send: bool = False) -> Iterator[None]:
    """Raise only `ChannelError`s, none of which contains `token`.

    Set `is_send` for calls that post a message: their errors then say whether Telegram may have received it, because
    a retry could show the message twice.
    """
    try:
        yield
    except (theirs.AiogramError, OSError, UnicodeError) as error:
        # aiohttp quotes URLs in its errors, and the URL of every Bot API call contains the token.
        leaks = token.reveal() in f"{error}{error!r}{error.__cause__}{error.__cause__!r}"
        raise translate(error, token, is_send=is_send) from (None if leaks else error)


def translate(error: Exception, token: Secret, *, is_send: bool = False) -> ChannelError:
    reaction, template = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    sentence = template.format(error).replace(token.reveal(), "***")
    if isinstance(error, theirs.TelegramRetryAfter):
        return Transient(sentence, retry_after=float(error.retry_after))
    if isinstance(error, theirs.TelegramBadRequest) and any(
        problem in error.message.lower() for problem in _MARKUP_PROBLEMS
    ):
        return MarkupRefused(sentence)
    if reaction is Transient:
        # Telegram may have received the request unless it refused it or no connection was ever made.
        was_sent = isinstance(error, _OUTCOME_UNKNOWN) and not isinstance(error.__cause__, _NEVER_CONNECTED)
        return Transient(sentence, may_have_arrived=is_send and was_sent)
    return reaction(sentence)


async def sent_message_id(sending: Awaitable[Message | None]) -> int:
    """Return the id of the message that `sending` posts.

    If aiogram cannot parse the response but Telegram reports success, the message was posted. Raising an error then
    would make the core post it a second time.
    """
    try:
        message = await sending
    except theirs.ClientDecodeError as undecodable:
        match undecodable.data:
            case {"ok": True, "result": {"message_id": int(message_id)}}:
                return message_id
        raise
    if message is None:
        raise Transient("Telegram didn't return the message it sent.", may_have_arrived=True)
    return message.message_id

"""What discord.py raises, as what the gateway does about it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import aiohttp
import discord as theirs
from discord.gateway import ReconnectWebSocket, WebSocketClosure
from discord.opus import OpusError

from config import Secret
from gateway.errors import AuthRejected, ChannelError, Transient, Undeliverable


class FormRefused(Undeliverable):
    """Discord does not take the message in this form; the bare text may still pass."""


class ReplyRefused(FormRefused):
    """Discord does not let the bot reply to that message, though it may let it write: the history is closed to it."""


BAD_TOKEN = "Discord refused the bot's token. The Developer Portal gives it a new one, on the page Bot."  # noqa: S105
NO_INTENT = (
    "Discord refused the intents of the bot: switch on Message Content Intent in the Developer Portal, "
    "on the page Bot, and reload."
)
_SAYS = "Discord says: {0}"
_FAILED = "The call to Discord failed ({0})."
_BROKEN = "The connection to Discord broke."

TABLE: Mapping[type[Exception], tuple[type[ChannelError], str]] = {
    theirs.LoginFailure: (AuthRejected, BAD_TOKEN),
    theirs.PrivilegedIntentsRequired: (AuthRejected, NO_INTENT),
    theirs.ConnectionClosed: (Transient, "Discord closed the connection ({0.code})."),
    theirs.GatewayNotFound: (Transient, "Discord does not say where its gateway is."),
    theirs.RateLimited: (Transient, "Discord asked for a pause of {0.retry_after:.0f} s."),
    theirs.DiscordServerError: (Transient, "Discord is in trouble (HTTP {0.status})."),
    theirs.Forbidden: (Undeliverable, _SAYS),
    theirs.NotFound: (Undeliverable, _SAYS),
    theirs.HTTPException: (Undeliverable, _SAYS),
    ReconnectWebSocket: (Transient, "Discord asked to connect anew."),
    WebSocketClosure: (Transient, _BROKEN),
    # What is raised only by parts of discord.py that are not used here.
    theirs.InvalidData: (Undeliverable, _FAILED),
    theirs.InteractionResponded: (Undeliverable, _FAILED),
    theirs.MissingApplicationID: (Undeliverable, _FAILED),
    theirs.FFmpegProcessError: (Undeliverable, _FAILED),
    OpusError: (Undeliverable, _FAILED),
    theirs.ClientException: (Undeliverable, _FAILED),
    theirs.DiscordException: (Undeliverable, _FAILED),
    # What discord.py lets through from below.
    TimeoutError: (Transient, "Discord did not answer in time."),
    aiohttp.ClientError: (Transient, "Discord cannot be reached."),
    OSError: (Transient, _BROKEN),
    ValueError: (Transient, "Discord's answer could not be read."),
}

_FATAL_CLOSES = {
    4004: BAD_TOKEN,
    4010: "Discord refused the shard.",
    4011: "Discord wants this bot to be sharded: it is in too many servers for one connection.",
    4012: "Discord no longer speaks this version of its gateway: upgrade discord.py.",
    4013: NO_INTENT,
    4014: NO_INTENT,
}
_REFUSED_FORMS = {50035: FormRefused, 160002: ReplyRefused, 160009: ReplyRefused, 160010: ReplyRefused}
"""https://discord.com/developers/docs/topics/opcodes-and-status-codes#json"""
_NEVER_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_UNKNOWN_OUTCOME = (TimeoutError, aiohttp.ClientError, OSError, ValueError, theirs.DiscordServerError)
RAISED = (theirs.DiscordException, ReconnectWebSocket, WebSocketClosure, aiohttp.ClientError, OSError, ValueError)


@contextmanager
def translated(token: Secret, *, is_send: bool = False) -> Iterator[None]:
    """Let only `ChannelError`s out, and `token` with none of them.

    What `is_send` shows a message that it might show twice: then it matters whether Discord may have got it.
    """
    try:
        yield
    except RAISED as error:
        leaks = token.reveal() in f"{error}{error!r}{error.__cause__}{error.__cause__!r}"
        raise translate(error, token, is_send=is_send) from (None if leaks else error)


def translate(error: Exception, token: Secret, *, is_send: bool = False) -> ChannelError:
    special = _special(error)
    if special is not None:
        return special
    reaction, template = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    detail = type(error).__name__ if template is _FAILED else error
    sentence = template.format(detail).replace(token.reveal(), "***")
    if isinstance(error, theirs.HTTPException) and error.code in _REFUSED_FORMS:
        return _REFUSED_FORMS[error.code](sentence)
    if reaction is Transient:
        return Transient(sentence, may_have_arrived=is_send and _may_have_arrived(error))
    return reaction(sentence)


def _special(error: Exception) -> ChannelError | None:
    """Translate what its class alone does not tell apart."""
    match error:
        case theirs.RateLimited():
            return Transient(f"Discord asked for a pause of {error.retry_after:.0f} s.", retry_after=error.retry_after)
        case theirs.HTTPException(status=401):
            return AuthRejected(BAD_TOKEN)
        case theirs.HTTPException(status=429):
            return Transient("Discord takes no requests from here for a while.", retry_after=_asked(error))
        case theirs.ConnectionClosed(code=code) if code in _FATAL_CLOSES:
            return AuthRejected(_FATAL_CLOSES[code])
        case theirs.GatewayNotFound(__cause__=theirs.HTTPException() as cause):
            return _special(cause)
    return None


def _asked(refusal: theirs.HTTPException) -> float | None:
    try:
        return float(refusal.response.headers["Retry-After"])
    except (KeyError, ValueError):
        return None


def _may_have_arrived(error: Exception) -> bool:
    """Tell whether Discord may have taken a request: it has neither refused it nor been out of reach."""
    return isinstance(error, _UNKNOWN_OUTCOME) and not isinstance(error, _NEVER_CONNECTED)

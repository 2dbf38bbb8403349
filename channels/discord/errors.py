"""Translates discord.py's exceptions to the errors that the gateway reacts to."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import aiohttp
import discord as theirs
from discord.gateway import ReconnectWebSocket, WebSocketClosure
from discord.opus import OpusError

from config import Secret
from gateway.errors import AuthRejected, ChannelError, Transient, Undeliverable


class FormRefused(Undeliverable):
    """Discord rejected the form of the message. Plain text may still pass."""


class ReplyRefused(FormRefused):
    """Discord rejected the reference to the message that is replied to. The bot may still write without it."""


BAD_TOKEN = "Discord rejected the bot's token. Create a new one in the Developer Portal, on the Bot page."  # noqa: S105
NO_INTENT = (
    "Discord rejected the bot's intents: turn on Message Content Intent in the Developer Portal, "
    "on the Bot page, then run `gatehouse reload`."
)
_REFUSED = "Discord refused: {0}"
_FAILED = "The call to Discord failed ({0})."
_BROKEN = "The connection to Discord broke."

TABLE: Mapping[type[Exception], tuple[type[ChannelError], str]] = {
    theirs.LoginFailure: (AuthRejected, BAD_TOKEN),
    theirs.PrivilegedIntentsRequired: (AuthRejected, NO_INTENT),
    theirs.ConnectionClosed: (Transient, "Discord closed the connection (code {0.code})."),
    theirs.GatewayNotFound: (Transient, "Discord didn't return the address of its gateway."),
    theirs.RateLimited: (Transient, "Discord's rate limit is reached for {0.retry_after:.0f} s."),
    theirs.DiscordServerError: (Transient, "Discord has a server error (HTTP {0.status})."),
    theirs.Forbidden: (Undeliverable, _REFUSED),
    theirs.NotFound: (Undeliverable, _REFUSED),
    theirs.HTTPException: (Undeliverable, _REFUSED),
    ReconnectWebSocket: (Transient, "Discord asked the bot to reconnect."),
    WebSocketClosure: (Transient, _BROKEN),
    # Raised only by parts of discord.py that are not used here.
    theirs.InvalidData: (Undeliverable, _FAILED),
    theirs.InteractionResponded: (Undeliverable, _FAILED),
    theirs.MissingApplicationID: (Undeliverable, _FAILED),
    theirs.FFmpegProcessError: (Undeliverable, _FAILED),
    OpusError: (Undeliverable, _FAILED),
    theirs.ClientException: (Undeliverable, _FAILED),
    theirs.DiscordException: (Undeliverable, _FAILED),
    # Raised by the libraries below discord.py.
    TimeoutError: (Transient, "Discord didn't answer in time."),
    aiohttp.ClientError: (Transient, "Discord can't be reached."),
    OSError: (Transient, _BROKEN),
    ValueError: (Transient, "Discord's response couldn't be read."),
}

# https://discord.com/developers/docs/topics/opcodes-and-status-codes#gateway-gateway-close-event-codes
_FATAL_CLOSE_CODES = {
    4004: BAD_TOKEN,
    4010: "Discord rejected the shard.",
    4011: "Discord requires sharding: this bot is in too many servers for one connection.",
    4012: "Discord no longer supports this version of its gateway. Upgrade discord.py.",
    4013: NO_INTENT,
    4014: NO_INTENT,
}
# https://discord.com/developers/docs/topics/opcodes-and-status-codes#json
_REFUSED_FORMS = {50035: FormRefused, 160002: ReplyRefused, 160009: ReplyRefused, 160010: ReplyRefused}
_NEVER_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_UNKNOWN_OUTCOME = (TimeoutError, aiohttp.ClientError, OSError, ValueError, theirs.DiscordServerError)
RAISED = (theirs.DiscordException, ReconnectWebSocket, WebSocketClosure, aiohttp.ClientError, OSError, ValueError)


@contextmanager
def translated(token: Secret, *, is_send: bool = False) -> Iterator[None]:
    """Raise `ChannelError`s only, none of which contains the token. For `is_send` see `translate`."""
    try:
        yield
    except RAISED as error:
        leaks = token.reveal() in f"{error}{error!r}{error.__cause__}{error.__cause__!r}"
        raise translate(error, token, is_send=is_send) from (None if leaks else error)


def translate(error: Exception, token: Secret, *, is_send: bool = False) -> ChannelError:
    """Return our error for one of theirs.

    With `is_send`, a retry could show a message twice, so the error says whether the request may have arrived.
    """
    special = _translate_special(error)
    if special is not None:
        return special
    reaction, template = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    detail = type(error).__name__ if template is _FAILED else error
    sentence = template.format(detail).replace(token.reveal(), "***")
    if isinstance(error, theirs.HTTPException) and error.code in _REFUSED_FORMS:
        return _REFUSED_FORMS[error.code](sentence)
    if reaction is Transient:
        # The request may have arrived unless Discord refused it or no connection was made.
        in_doubt = isinstance(error, _UNKNOWN_OUTCOME) and not isinstance(error, _NEVER_CONNECTED)
        return Transient(sentence, may_have_arrived=is_send and in_doubt)
    return reaction(sentence)


def _translate_special(error: Exception) -> ChannelError | None:
    """Translate errors whose class alone does not determine the reaction."""
    match error:
        case theirs.RateLimited():
            sentence = f"Discord's rate limit is reached for {error.retry_after:.0f} s."
            return Transient(sentence, retry_after=error.retry_after)
        case theirs.HTTPException(status=401):
            return AuthRejected(BAD_TOKEN)
        case theirs.HTTPException(status=429):
            # Discord (or Cloudflare in front of it) has blocked this IP address for a while.
            try:
                retry_after = float(error.response.headers["Retry-After"])
            except (KeyError, ValueError):
                retry_after = None
            return Transient("Discord blocks requests from this address for a while.", retry_after=retry_after)
        case theirs.ConnectionClosed(code=code) if code in _FATAL_CLOSE_CODES:
            return AuthRejected(_FATAL_CLOSE_CODES[code])
        case theirs.GatewayNotFound(__cause__=theirs.HTTPException() as cause):
            return _translate_special(cause)
    return None

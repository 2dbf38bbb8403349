"""Discord's REST API, one method for each call that is made; what it raises is ours, and never holds the token."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import discord
import structlog
from discord.http import MultipartParameters, Route, handle_message_parameters

from channels.discord.errors import translated
from channels.discord.gateway_connection import Client, Frame
from config import Secret
from gateway.errors import ChannelError, Transient, Undeliverable

log = structlog.get_logger()

TIMEOUT = 50.0
"""Discord.py tries again by itself, and waits as long as it is asked to; this ends it."""
SIGN_TIMEOUT = 5.0
"""A sign of life that takes longer is out of date."""
PAGE = 100
CHUNK = 64 * 1024
FETCH_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=20, sock_read=30)
NO_PREVIEW = discord.MessageFlags(suppress_embeds=True)
"""A preview makes Discord fetch whatever address the agent has written, with all that may be in it."""
QUIET = discord.AllowedMentions.none()
"""Nobody is called by what an agent writes."""

EPHEMERAL = 64
DEFERRED_MESSAGE, DEFERRED_UPDATE, CHOICES = 5, 6, 8
"""https://discord.com/developers/docs/interactions/receiving-and-responding"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A text on its way out, with what hangs on it."""

    text: str
    nonce: str = ""
    reply_to: int | None = None
    components: Sequence[Mapping[str, Any]] = ()
    file: Path | None = None
    file_name: str = ""


class Api:
    """Works once the client has logged in, until it is closed."""

    def __init__(self, client: Client, token: Secret) -> None:
        self._client = client
        self._token = token
        self._http = client.http

    @property
    def me(self) -> str:
        """The bot's own id."""
        return str(self._client.user.id) if self._client.user else ""

    async def login(self) -> discord.AppInfo:
        """Tell Discord who we are; return what the bot belongs to."""
        async with self._call():
            await self._client.login(self._token.reveal())
        if self._client.application is None:
            raise Transient("Discord does not say what the bot belongs to.")
        return self._client.application

    async def send(self, channel: int, letter: Letter) -> tuple[int, str]:
        """Return id and text of the message: of the first one, when Discord still knows the nonce."""
        async with self._call(is_send=True):
            with await asyncio.to_thread(_form, letter) as form:
                sent = await self._http.send_message(channel, params=form)
        return int(sent["id"]), str(sent.get("content", ""))

    async def edit(self, channel: int, message: int, letter: Letter) -> None:
        async with self._call():
            form = handle_message_parameters(content=letter.text, allowed_mentions=QUIET)
            (form.payload or {})["components"] = letter.components
            await self._http.edit_message(channel, message, params=form)

    async def direct_channel(self, user: int) -> int:
        async with self._call():
            return int((await self._http.start_private_message(user))["id"])

    async def channel(self, channel: int) -> Frame:
        async with self._call():
            return dict(await self._http.get_channel(channel))

    async def roles(self, guild: int) -> list[Frame]:
        """Return the roles of a server."""
        async with self._call():
            return [dict(role) for role in await self._http.get_roles(guild)]

    async def history(self, channel: int, after: int) -> list[Frame]:
        """Return the next messages behind `after`, oldest first; at most a page."""
        return await self._page(channel, after=after)

    async def newest(self, channel: int, before: int | None = None) -> list[Frame]:
        """Return the newest messages, or the last ones ahead of `before`, oldest first; at most a page."""
        return await self._page(channel, before=before)

    async def _page(self, channel: int, **where: int | None) -> list[Frame]:
        async with self._call():
            found: Any = await self._http.logs_from(channel, PAGE, **where)  # Any: as `Frame`.
        return sorted(found, key=lambda message: int(message["id"]))

    async def show_typing(self, channel: int) -> None:
        async with self._call(SIGN_TIMEOUT):
            await self._http.send_typing(channel)

    async def react(self, channel: int, message: int, emoji: str) -> None:
        async with self._call(SIGN_TIMEOUT):
            await self._http.add_reaction(channel, message, emoji)

    async def unreact(self, channel: int, message: int, emoji: str) -> None:
        async with self._call(SIGN_TIMEOUT):
            await self._http.remove_own_reaction(channel, message, emoji)

    async def commands(self, application: int) -> Sequence[Any]:
        async with self._call():
            return await self._http.get_global_commands(application)

    async def set_commands(self, application: int, commands: list[Frame]) -> None:
        async with self._call():
            await self._http.bulk_upsert_global_commands(application, commands)

    async def answer(self, interaction: Frame, kind: int, data: Frame | None = None) -> None:
        """Answer an interaction, which Discord wants within three seconds."""
        route = _interaction(
            "POST", "/interactions/{webhook_id}/{webhook_token}/callback", interaction["id"], interaction
        )
        async with self._call(SIGN_TIMEOUT):
            await self._http.request(route, json={"type": kind, **({"data": data} if data else {})})

    async def tell(self, interaction: Frame, text: str) -> None:
        """Say something that only the person sees who has acted; nothing depends on whether that works."""
        route = _interaction(
            "POST", "/webhooks/{webhook_id}/{webhook_token}", interaction["application_id"], interaction
        )
        with suppress(ChannelError):
            async with self._call(SIGN_TIMEOUT):
                await self._http.request(route, json={"content": text, "flags": EPHEMERAL})

    async def clear(self, interaction: Frame) -> None:
        """Take away "is thinking"; the answer comes as any other message does."""
        path = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"
        route = _interaction("DELETE", path, interaction["application_id"], interaction)
        with suppress(ChannelError):
            async with self._call(SIGN_TIMEOUT):
                await self._http.request(route)

    async def fetch(self, channel: int, message: int, attachment: int) -> AsyncGenerator[bytes, None]:
        """Stream a file. Its address is asked for anew: the one that came with the message is good for a day only."""
        async with self._call():
            found: Any = await self._http.get_message(channel, message)  # Any: as `Frame`.
        url = _address(found, attachment)
        with translated(self._token):
            async with aiohttp.ClientSession(timeout=FETCH_TIMEOUT) as session, session.get(url) as response:
                if response.status != HTTPStatus.OK:
                    raise _not_given(response.status)
                async for chunk in response.content.iter_chunked(CHUNK):
                    yield chunk

    @asynccontextmanager
    async def _call(self, seconds: float = TIMEOUT, *, is_send: bool = False) -> AsyncIterator[None]:
        with translated(self._token, is_send=is_send):
            async with asyncio.timeout(seconds):
                yield


def _not_given(status: int) -> ChannelError:
    """Return what it means that a file was not given: that it is gone, or that it may be there in a while."""
    is_busy = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS
    return (Transient if is_busy else Undeliverable)(f"Discord does not give the file away (HTTP {status}).")


def _form(letter: Letter) -> MultipartParameters:
    """Write the request; opening a file touches the disk, so this is done in a thread."""
    form = handle_message_parameters(
        content=letter.text,
        nonce=letter.nonce,
        flags=NO_PREVIEW,
        allowed_mentions=QUIET,
        message_reference=_reference(letter.reply_to) if letter.reply_to else discord.utils.MISSING,
        file=discord.File(letter.file, filename=letter.file_name) if letter.file else discord.utils.MISSING,
    )
    if letter.components and form.payload is not None:
        form.payload["components"] = letter.components
    return form


def _reference(message: int) -> Any:  # noqa: ANN401 - discord.py's own type cannot be imported.
    """Name the message that is replied to; when it is gone, the reply is sent all the same."""
    return {"message_id": message, "fail_if_not_exists": False}


def _interaction(method: str, path: str, owner: str, interaction: Frame) -> Route:
    return Route(method, path, webhook_id=owner, webhook_token=interaction["token"])


def _address(message: Frame, attachment: int) -> str:
    sources = [message, *(shot.get("message") or {} for shot in message.get("message_snapshots") or ())]
    for source in sources:
        for file in source.get("attachments") or ():
            if int(file["id"]) == attachment:
                return str(file["url"])
    raise Undeliverable("The file is gone: its message was edited or deleted.")

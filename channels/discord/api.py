"""Discord's REST API: one method per call. Raises `ChannelError`s only, and they never contain the token."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import discord
from discord.http import MultipartParameters, Route, handle_message_parameters

from channels.discord.errors import translated
from channels.discord.gateway_connection import DiscordClient
from channels.discord.wire import Json
from config import Secret
from gateway.errors import ChannelError, Transient, Undeliverable

CALL_TIMEOUT = 50.0
"""Ends the retries of discord.py, which waits out rate limits."""
SHORT_TIMEOUT = 5.0
"""For calls that are of no use later, such as typing indicators."""
DOWNLOAD_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=20, sock_read=30)
DOWNLOAD_CHUNK = 64 * 1024
HISTORY_PAGE = 100
"""The most messages that Discord returns in one call."""
NO_PREVIEW = discord.MessageFlags(suppress_embeds=True)
"""For a preview, Discord would fetch any URL that the agent wrote, including data hidden in it."""
NO_MENTIONS = discord.AllowedMentions.none()
"""Text of an agent must not ping people."""

# https://discord.com/developers/docs/interactions/receiving-and-responding
EPHEMERAL = 64
LOADING = 128
"""The flag of a response that shows "is thinking..."."""
DEFERRED_MESSAGE, DEFERRED_UPDATE, CHOICES = 5, 6, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePayload:
    """The content of a message to send or to edit."""

    text: str
    nonce: str = ""
    reply_to: int | None = None
    components: Sequence[Mapping[str, Any]] = ()
    file: Path | None = None
    file_name: str = ""


class DiscordApi:
    """Usable from `login` until the client is closed."""

    def __init__(self, client: DiscordClient, token: Secret) -> None:
        self._client = client
        self._token = token
        self._http = client.http

    @property
    def bot_id(self) -> str:
        return str(self._client.user.id) if self._client.user else ""

    async def login(self) -> discord.AppInfo:
        """Log in, and return the application that the bot belongs to."""
        async with self._call():
            await self._client.login(self._token.reveal())
        if self._client.application is None:
            raise Transient("Discord didn't return the application of the bot.")
        return self._client.application

    async def send(self, channel: int, payload: MessagePayload) -> tuple[int, str]:
        """Return id and text of the message: of the existing message if Discord still knows the nonce."""
        async with self._call(is_send=True):
            with await asyncio.to_thread(_message_form, payload) as form:
                sent = await self._http.send_message(channel, params=form)
        return int(sent["id"]), str(sent.get("content", ""))

    async def edit(self, channel: int, message: int, payload: MessagePayload) -> None:
        async with self._call():
            form = handle_message_parameters(content=payload.text, allowed_mentions=NO_MENTIONS)
            (form.payload or {})["components"] = payload.components
            await self._http.edit_message(channel, message, params=form)

    async def direct_channel(self, user: int) -> int:
        """Return the id of the direct channel with a user, creating it if needed."""
        async with self._call():
            return int((await self._http.start_private_message(user))["id"])

    async def channel(self, channel: int) -> Json:
        async with self._call():
            return dict(await self._http.get_channel(channel))

    async def roles(self, guild: int) -> list[Json]:
        """Return the roles of a server."""
        async with self._call():
            return [dict(role) for role in await self._http.get_roles(guild)]

    async def history(self, channel: int, after: int) -> list[Json]:
        """Return up to a page of the messages that follow `after`, oldest first."""
        return await self._history_page(channel, after=after)

    async def newest(self, channel: int, before: int | None = None) -> list[Json]:
        """Return up to a page of the newest messages, or of those right before `before`, oldest first."""
        return await self._history_page(channel, before=before)

    async def _history_page(self, channel: int, **where: int | None) -> list[Json]:
        async with self._call():
            found: Any = await self._http.logs_from(channel, HISTORY_PAGE, **where)  # Any: as `Json`.
        return sorted(found, key=lambda message: int(message["id"]))

    async def show_typing(self, channel: int) -> None:
        async with self._call(SHORT_TIMEOUT):
            await self._http.send_typing(channel)

    async def react(self, channel: int, message: int, emoji: str) -> None:
        async with self._call(SHORT_TIMEOUT):
            await self._http.add_reaction(channel, message, emoji)

    async def unreact(self, channel: int, message: int, emoji: str) -> None:
        async with self._call(SHORT_TIMEOUT):
            await self._http.remove_own_reaction(channel, message, emoji)

    async def slash_commands(self, application: int) -> Sequence[Any]:
        async with self._call():
            return await self._http.get_global_commands(application)

    async def set_slash_commands(self, application: int, commands: list[Json]) -> None:
        async with self._call():
            await self._http.bulk_upsert_global_commands(application, commands)

    async def respond(self, interaction: Json, kind: int, data: Json | None = None) -> None:
        """Send the first response to an interaction, which Discord expects within three seconds."""
        path = "/interactions/{webhook_id}/{webhook_token}/callback"
        route = Route("POST", path, webhook_id=interaction["id"], webhook_token=interaction["token"])
        async with self._call(SHORT_TIMEOUT):
            await self._http.request(route, json={"type": kind, **({"data": data} if data else {})})

    async def edit_response(self, interaction: Json, payload: MessagePayload) -> int:
        """Put a message in the place of "is thinking...". Return its id."""
        return await self._write_response(interaction, "PATCH", "/messages/@original", _response_body(payload, 0))

    async def is_deferred(self, interaction: Json) -> bool:
        """Return whether "is thinking..." still waits for a message in its place."""
        owner, token = interaction["application_id"], interaction["token"]
        path = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"
        async with self._call(SHORT_TIMEOUT):
            response: Any = await self._http.request(Route("GET", path, webhook_id=owner, webhook_token=token))
        return bool(response.get("flags", 0) & LOADING)  # Any above: as `Json`.

    async def follow_up(self, interaction: Json, payload: MessagePayload, flags: int) -> int:
        """Send a further message below the first response. Return its id."""
        return await self._write_response(interaction, "POST", "?wait=true", _response_body(payload, flags))

    async def _write_response(self, interaction: Json, method: str, path: str, body: Json) -> int:
        owner, token = interaction["application_id"], interaction["token"]
        route = Route(method, "/webhooks/{webhook_id}/{webhook_token}" + path, webhook_id=owner, webhook_token=token)
        async with self._call(is_send=method == "POST"):
            sent: Any = await self._http.request(route, json=body)  # Any: as `Json`.
        return int(sent["id"])

    async def send_ephemeral(self, interaction: Json, text: str) -> None:
        """Send a text that only the person who acted can see. Errors are ignored: nothing depends on it."""
        await self._follow_up(interaction, "POST", "", json={"content": text, "flags": EPHEMERAL})

    async def delete_deferred(self, interaction: Json) -> None:
        """Remove "is thinking...". Errors are ignored: nothing depends on it."""
        await self._follow_up(interaction, "DELETE", "/messages/@original")

    async def _follow_up(self, interaction: Json, method: str, path: str, **options: object) -> None:
        owner, token = interaction["application_id"], interaction["token"]
        route = Route(method, "/webhooks/{webhook_id}/{webhook_token}" + path, webhook_id=owner, webhook_token=token)
        with suppress(ChannelError):
            async with self._call(SHORT_TIMEOUT):
                await self._http.request(route, **options)

    async def fetch(self, channel: int, message: int, attachment: int) -> AsyncGenerator[bytes, None]:
        """Stream a file. Asks for its URL first, because the URL in the original event expires after a day."""
        async with self._call():
            found: Any = await self._http.get_message(channel, message)  # Any: as `Json`.
        sources = [found, *(snapshot.get("message") or {} for snapshot in found.get("message_snapshots") or ())]
        files = (file for source in sources for file in source.get("attachments") or ())
        url = next((str(file["url"]) for file in files if int(file["id"]) == attachment), None)
        if url is None:
            raise Undeliverable("The file no longer exists: its message was edited or deleted.")
        with translated(self._token):
            async with aiohttp.ClientSession(timeout=DOWNLOAD_TIMEOUT) as session, session.get(url) as response:
                status = response.status
                if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
                    raise Transient(f"Discord didn't return the file (HTTP {status}).")
                if status != HTTPStatus.OK:
                    raise Undeliverable(f"Discord didn't return the file (HTTP {status}).")
                async for chunk in response.content.iter_chunked(DOWNLOAD_CHUNK):
                    yield chunk

    @asynccontextmanager
    async def _call(self, seconds: float = CALL_TIMEOUT, *, is_send: bool = False) -> AsyncIterator[None]:
        with translated(self._token, is_send=is_send):
            async with asyncio.timeout(seconds):
                yield


def _response_body(payload: MessagePayload, flags: int) -> Json:
    return {
        "content": payload.text,
        "components": list(payload.components),
        "flags": NO_PREVIEW.value | flags,
        "allowed_mentions": NO_MENTIONS.to_dict(),
    }


def _message_form(payload: MessagePayload) -> MultipartParameters:
    """Build the request of a message. Opens the file, so it runs in a thread."""
    # Discord still sends a reply whose original is gone, but only if asked to.
    reference: Any = {"message_id": payload.reply_to, "fail_if_not_exists": False}  # Any: the type is not importable.
    form = handle_message_parameters(
        content=payload.text,
        nonce=payload.nonce,
        flags=NO_PREVIEW,
        allowed_mentions=NO_MENTIONS,
        message_reference=reference if payload.reply_to else discord.utils.MISSING,
        file=discord.File(payload.file, filename=payload.file_name) if payload.file else discord.utils.MISSING,
    )
    if payload.components and form.payload is not None:
        form.payload["components"] = payload.components
    return form

"""Long replies: an answer that would take too many messages is sent as a file, with its beginning as a preview."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import structlog
from msgspec.structs import replace

from gateway.access.rules import Live
from gateway.contract import Address, Channel, Enclosure, Outbound
from gateway.contract.abilities import abilities_of
from gateway.errors import Refused
from gateway.files.store import FileStore, TooLarge, folder_of
from gateway.outbound.delivery import part_size
from gateway.sessions import SessionManager
from gateway.text import split
from gateway.text.plain import in_bytes
from gateway.text.splitting import first_parts

log = structlog.get_logger()

FILE_NAME = "answer.md"
MEDIA_TYPE = "text/markdown"
PREVIEW_SIZE = 800
"""The length of the preview, in the platform's units."""
_BLOCK_CHARS = 1 << 18


def max_reply_parts(live: Live, address: Address) -> int:
    """Return how many messages an answer may take in a chat; 0 if there is no limit."""
    own = live.rules(address).max_reply_parts
    return live.settings.gateway.max_reply_parts if own is None else own


class LongReplies:
    """Decides before a reply is committed. So the same is sent after a restart."""

    def __init__(
        self,
        live: Live,
        channels: Mapping[tuple[str, str], Channel],
        store: FileStore,
        sessions: SessionManager,
        streamed_parts: Callable[[str], int],
    ) -> None:
        """`streamed_parts` tells how many messages of the answer of a turn are in its first chat already."""
        self._streamed_parts = streamed_parts
        self._live = live
        self._channels = channels
        self._store = store
        self._sessions = sessions

    async def shorten(self, messages: Sequence[Outbound], *, turn: str, session: str, note: str) -> list[Outbound]:
        """Replace the text of each message that is too long for its chat by a preview, with the whole text as `file`.

        `note` is the end of the text that the preview has to show too. If the text cannot be stored, or a channel
        cannot send it as a file, the message stays as it is and is split.
        """
        file: Enclosure | None = None
        shortened = []
        for number, message in enumerate(messages):
            channel = self._channels.get((message.address.channel, message.address.account))
            if channel is None or not self._is_too_long(channel, message):
                shortened.append(message)
                continue
            try:
                file = file or await self._store_text(
                    message.text, session, f"{turn}-out0-{FILE_NAME}", FILE_NAME, MEDIA_TYPE
                )
            except (OSError, TooLarge, Refused) as error:
                log.warning("long_reply_not_stored", reason=str(error) or "it is too large")
                return list(messages)
            if file.size > _max_file_bytes(channel):
                shortened.append(message)
                continue
            preview = self._preview(channel, message, streamed=0 if number else self._streamed_parts(turn))
            hint = f"*This answer is too long for a chat ({in_bytes(file.size)}). The file {FILE_NAME} has all of it.*"
            text = "\n\n".join(filter(None, [preview, hint, note]))
            shortened.append(replace(message, text=text, file=file))
        return shortened

    def _preview(self, channel: Channel, message: Outbound, *, streamed: int) -> str:
        """Return the first lines of a text, or all that has been streamed: people may be reading that."""
        limit, can = channel.text_limit, abilities_of(channel)
        if not streamed:
            return split(message.text, min(PREVIEW_SIZE, limit.size // 2), limit.measure)[0].rstrip()
        # Where the channel has drafts, one more part was shown as a draft, which disappears now.
        has_draft = can.drafts is not None and can.drafts.can_draft(message.address)
        parts = min(streamed + has_draft, max_reply_parts(self._live, message.address))
        return first_parts(message.text, parts, part_size(limit), limit.measure)

    async def notice_as_file(self, notice: Outbound, *, session: str, key: str, name: str) -> Enclosure | None:
        """Return the text of `notice` as a file of the session, or None if it can be sent as it is.

        `key` makes the stored name unique. If the text cannot be stored, it has to be split into messages.
        """
        channel = self._channels.get((notice.address.channel, notice.address.account))
        if channel is None or not self._is_too_long(channel, notice):
            return None
        try:
            file = await self._store_text(notice.text, session, f"{key}-{name}", name, "text/plain")
        except (OSError, TooLarge, Refused) as error:
            log.warning("long_reply_not_stored", reason=str(error) or "it is too large")
            return None
        return file if file.size <= _max_file_bytes(channel) else None

    def _is_too_long(self, channel: Channel, message: Outbound) -> bool:
        limit = channel.text_limit
        length = limit.measure(message.text)
        if length <= limit.size or _max_file_bytes(channel) < 0:
            return False
        most, size = max_reply_parts(self._live, message.address), part_size(limit)
        if most == 0:
            return False
        return length > most * size or len(split(message.text, size, limit.measure)) > most

    async def _store_text(self, text: str, session: str, stored_name: str, name: str, media_type: str) -> Enclosure:
        async def blocks() -> AsyncIterator[bytes]:
            for at in range(0, len(text), _BLOCK_CHARS):
                yield text[at : at + _BLOCK_CHARS].encode(errors="replace")

        limit = self._live.settings.files.max_bytes
        stored = await self._store.keep(folder_of(session), stored_name, blocks(), limit=limit)
        await self._store.require_session(session, stored, self._sessions)
        return Enclosure(name=name, media_type=media_type, size=stored.size, ref=stored.ref)


def _max_file_bytes(channel: Channel) -> int:
    """Return the largest file that the channel can send; -1 if it sends no files."""
    can = abilities_of(channel)
    return can.sends_files.max_file_bytes if can.sends_files is not None else -1

"""Courier: brings one message to its chat, once: as a new one, as the end of its draft, or found there already."""

import math
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path

import structlog
from msgspec.structs import replace

from gateway.composing import possibly_repeated
from gateway.contract import Channel, Enclosure, Outbound, Receipt
from gateway.contract.abilities import abilities_of
from gateway.errors import Refused, Undeliverable
from gateway.files.identify import in_bytes
from gateway.sketches import Sketches
from gateway.spool import OutboxRow, Spool

__all__ = ["Courier"]

log = structlog.get_logger()

CLOCKS_DIFFER_BY = timedelta(minutes=15)
"""How much the platform's clock may be behind ours."""
KNOWN_FOR = timedelta(days=1)
"""How long before a message another may have been delivered that stands behind the same question in its chat."""


class Courier:
    """Raises what the channel raises: whether that is tried again is not for it to say."""

    def __init__(
        self,
        spool: Spool,
        sketches: Sketches,
        *,
        now: Callable[[], datetime],
        file_path: Callable[[str], Awaitable[Path]],
    ) -> None:
        self._spool = spool
        self._sketches = sketches
        self._now = now
        self._file_path = file_path

    def are_repeats_dropped(self, channel: Channel, row: OutboxRow) -> bool:
        """Tell whether the platform still knows the key; where the clock was put back meanwhile, nobody can tell."""
        window = abilities_of(channel).repeats_dropped_for
        age = (self._now() - row.created_at).total_seconds()
        return window == math.inf or 0 <= age < window

    async def bring(self, channel: Channel, row: OutboxRow, *, may_repeat: bool) -> Receipt:
        """Bring a half-streamed draft to its final text; otherwise send anew."""
        edits = abilities_of(channel).edits
        draft = self._sketches.under(row)
        if draft is None or edits is None:
            return await self._send(channel, row, may_repeat=may_repeat)
        try:
            await edits.edit(draft, self._marked_if_lost(channel, row))
        except Undeliverable:  # The draft is gone or too old to be edited.
            return await self._send(channel, row, may_repeat=may_repeat)
        return draft

    async def _send(self, channel: Channel, row: OutboxRow, *, may_repeat: bool) -> Receipt:
        """Send, unless the chat shows that it has arrived; mark it where nobody can tell."""
        message = self._marked_if_lost(channel, row)
        if may_repeat:
            try:
                found = await self._find(channel, row)
            except Undeliverable:
                message = possibly_repeated(row.message)
            else:
                if found is not None:
                    return found
        if message.file is not None:
            return await self._send_file(channel, row.key, message, message.file)
        return await channel.send(message, key=row.key)

    async def _find(self, channel: Channel, row: OutboxRow) -> Receipt | None:
        """Look for a message in its chat; None when it is not there, `Undeliverable` when that cannot be told."""
        back = abilities_of(channel).back
        if back is None or row.message.file is not None:
            raise Undeliverable("The platform cannot be asked.")
        known = await self._spool.receipts(row.created_at - KNOWN_FOR)
        since = min(row.created_at, self._now()) - CLOCKS_DIFFER_BY
        return await back.look_back(row.message, since=since, known=known)

    async def _send_file(self, channel: Channel, key: str, message: Outbound, file: Enclosure) -> Receipt:
        """Send a file; where that cannot be, say so in its place."""
        sends = abilities_of(channel).sends_files
        reason = "files cannot be sent here"
        if sends is not None:
            try:
                return await sends.send_file(message, await self._file_path(file.ref), key=key)
            except (Undeliverable, Refused) as refusal:
                reason = str(refusal)
        log.warning("file_not_sent", channel=channel.name, key=key, reason=reason)
        text = f"{message.text}(The file {file.name}, {in_bytes(file.size)}, could not be sent: {reason})"
        return await channel.send(replace(message, text=text, file=None), key=key)

    def _marked_if_lost(self, channel: Channel, row: OutboxRow) -> Outbound:
        """Mark what may stand in the chat for ever by half; one sent anew under its key may be the same message."""
        is_lost = self._sketches.is_lost(row) and not abilities_of(channel).repeats_dropped_for
        return possibly_repeated(row.message) if is_lost else row.message

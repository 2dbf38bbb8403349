"""The gateway's side of the terminal chat: a `WebSocketChannel` on the control socket, with plain text."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from channels.websocket import WebSocketChannel
from channels.websocket.wire import message_frame
from gateway.contract import Access, Outbound, Receipt, Route
from gateway.errors import Undeliverable

PATH = "/terminal/ws"


class TerminalChannel(WebSocketChannel):
    """Each Unix user who can open the control socket has one chat, shared by all of their terminals."""

    keeps_replies = True
    """A client that reconnects resends its unanswered messages, and must get the answers that it missed."""

    max_file_bytes = 2_000_000_000

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        """Say where the file is stored: the terminal is on the same machine, and shows no files."""
        if message.file is None:
            raise Undeliverable("There is no file to send.")
        frame = message_frame(message, key=key, at=datetime.now(UTC))
        return await self._show(message, replace(frame, text=f"[file: {message.file.name}, stored as {path}]"))

    def routes(self) -> Sequence[Route]:
        return [Route(method="GET", path=PATH, access=Access.CONTROL, handle=self.serve)]

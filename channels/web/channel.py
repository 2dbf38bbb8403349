"""The web channel: a `SocketChannel` for the chat page, with Markdown rendered on this side."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from channels.web.assets import asset_routes
from channels.websocket import SocketChannel
from channels.websocket.connection import link_to
from channels.websocket.wire import Message
from gateway.contract import Access, ChannelContext, Outbound, Receipt, Route
from gateway.errors import Undeliverable
from gateway.text.markdown import render_html

__all__ = ["WebChannel"]


class WebChannel(SocketChannel):
    """Everybody with the same name sees the same chat, in as many tabs as they like."""

    max_buttons = 30
    max_file_bytes = 2_000_000_000

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context, render=render_html)

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        """Show a link to the file, which the gateway itself hands over; the transcript has it too."""
        del path
        if message.file is None:
            raise Undeliverable("There is no file to send.")
        frame = Message(
            key=key,
            kind=message.kind,
            text=f"[file: {message.file.name}]",
            at=datetime.now(UTC),
            session=message.session,
            reply_to=message.reply_to,
            file=link_to(message.file),
        )
        self.broadcast(message.address, frame)
        return Receipt(message_id=key)

    def routes(self) -> Sequence[Route]:
        return [*asset_routes(), Route(method="GET", path="/web/ws", access=Access.OWNER, handle=self.serve)]

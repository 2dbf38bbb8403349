"""The web channel: a `SocketChannel` for the chat page, with Markdown rendered on this side."""

from collections.abc import Sequence

from channels.sockets import SocketChannel
from channels.web.assets import asset_routes
from gateway.contract import Access, ChannelContext, Route
from gateway.text.markdown import render_html

__all__ = ["WebChannel"]


class WebChannel(SocketChannel):
    """Everybody with the same name sees the same chat, in as many tabs as they like."""

    max_buttons = 30

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context, render=render_html)

    def routes(self) -> Sequence[Route]:
        return [*asset_routes(), Route(method="GET", path="/web/ws", access=Access.OWNER, handle=self.serve)]

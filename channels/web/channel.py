"""The web channel: `SocketEndpoint` for the chat page, with Markdown rendered on this side."""

from collections.abc import Sequence

from channels.sockets import SocketEndpoint
from channels.web.assets import asset_routes
from gateway.contract import Access, ChannelContext, Deliver, Outbound, Receipt, Route, TextLimit
from gateway.text.markdown import render_html

__all__ = ["WebChannel"]

TEXT_LIMIT = TextLimit(size=1_000_000)
DRAFT_PACE = 0.03
MAX_BUTTONS = 30


class WebChannel:
    """Everybody with the same name sees the same chat, in as many tabs as they like."""

    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._endpoint = SocketEndpoint(context, render=render_html)

    @property
    def name(self) -> str:
        return self._context.name

    @property
    def account(self) -> str:
        return self._context.account

    @property
    def text_limit(self) -> TextLimit:
        return TEXT_LIMIT

    @property
    def draft_pace(self) -> float:
        return DRAFT_PACE

    @property
    def max_buttons(self) -> int:
        return MAX_BUTTONS

    def routes(self) -> Sequence[Route]:
        socket = Route(method="GET", path="/web/ws", access=Access.OWNER, handle=self._endpoint.serve)
        return [*asset_routes(), socket]

    async def run(self, deliver: Deliver) -> None:
        await self._endpoint.run(deliver)

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        return await self._endpoint.send(message, key=key)

    async def draft(self, message: Outbound, *, key: str) -> None:
        await self._endpoint.draft(message, key=key)

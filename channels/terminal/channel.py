"""The gateway's side of the terminal chat: `SocketEndpoint` on the control socket, with plain text."""

from collections.abc import Sequence

from channels.sockets import SocketEndpoint
from channels.terminal.wire import PATH
from gateway.contract import Access, ChannelContext, Deliver, Outbound, Receipt, Route, TextLimit

__all__ = ["TerminalChannel"]

TEXT_LIMIT = TextLimit(size=1_000_000)
DRAFT_PACE = 0.03


class TerminalChannel:
    """Each Unix user who can open the control socket has one chat, in as many terminals as they like."""

    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._endpoint = SocketEndpoint(context)

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

    def routes(self) -> Sequence[Route]:
        return [Route(method="GET", path=PATH, access=Access.CONTROL, handle=self._endpoint.serve)]

    async def run(self, deliver: Deliver) -> None:
        await self._endpoint.run(deliver)

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        return await self._endpoint.send(message, key=key)

    async def draft(self, message: Outbound, *, key: str) -> None:
        await self._endpoint.draft(message, key=key)

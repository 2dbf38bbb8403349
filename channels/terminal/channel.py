"""The gateway's side of the terminal chat: a `SocketChannel` on the control socket, with plain text."""

from collections.abc import Sequence

from channels.terminal.wire import PATH
from channels.websocket import SocketChannel
from gateway.contract import Access, Route

__all__ = ["TerminalChannel"]


class TerminalChannel(SocketChannel):
    """Each Unix user who can open the control socket has one chat, in as many terminals as they like."""

    keeps_replies = True
    """A client that has lost us for a moment sends again what was not answered, and waits for what it has missed."""

    def routes(self) -> Sequence[Route]:
        return [Route(method="GET", path=PATH, access=Access.CONTROL, handle=self.serve)]

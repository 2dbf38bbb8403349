"""The gateway's side of the terminal chat: a `WebSocketChannel` on the control socket, with plain text."""

from collections.abc import Sequence

from channels.websocket import WebSocketChannel
from gateway.contract import Access, Route

PATH = "/terminal/ws"


class TerminalChannel(WebSocketChannel):
    """Each Unix user who can open the control socket has one chat, shared by all of their terminals."""

    keeps_replies = True
    """A client that reconnects resends its unanswered messages, and must get the answers that it missed."""

    def routes(self) -> Sequence[Route]:
        return [Route(method="GET", path=PATH, access=Access.CONTROL, handle=self.serve)]

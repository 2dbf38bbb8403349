"""What was measured last: a conversation is the same messages turn after turn, and measuring them anew adds up."""

from collections import deque
from dataclasses import replace
from typing import NamedTuple

from gateway.agent.provider import ToolSpec
from gateway.agent.tokens import Measure, measure_message, measure_tools
from gateway.dialogue import Message, ToolMessage, UserMessage

__all__ = ["Measures", "chars"]

_MESSAGES = 8_192
_CHARS = 8 * 1024 * 1024


class _Known(NamedTuple):
    what: Message | ToolSpec
    """Kept, so that no other can get its identity."""
    sent: Message | None
    measure: Measure
    size: int


class Measures:
    """Knows messages and tools by their identity; the oldest are forgotten, by number and by length."""

    def __init__(self, *, names_senders: bool) -> None:
        self._names_senders = names_senders
        self._known: dict[int, _Known] = {}
        self._oldest: deque[int] = deque()
        self._chars = 0

    def __contains__(self, message: Message) -> bool:
        return id(message) in self._known

    def of(self, message: Message) -> Measure:
        """Measure a message as it is sent."""
        return self._message(message).measure

    def sent(self, message: Message) -> Message:
        """Return a message as it is sent: without its sender, where everybody knows who that is."""
        return self._message(message).sent or message

    def keep(self, message: Message, measure: Measure | None = None) -> _Known:
        """Remember a message, and what it was measured elsewhere."""
        sent = self.as_sent(message)
        return self._keep(_Known(message, sent, measure or measure_message(sent), chars(message)))

    def as_sent(self, message: Message) -> Message:
        if isinstance(message, UserMessage) and (message.sender or message.sender_id) and not self._names_senders:
            return replace(message, sender="", sender_id="")
        return message

    def of_tool(self, tool: ToolSpec) -> Measure:
        known = self._known.get(id(tool))
        return (self._keep(_Known(tool, None, measure_tools([tool]), 0)) if known is None else known).measure

    def _message(self, message: Message) -> _Known:
        known = self._known.get(id(message))
        return self.keep(message) if known is None else known

    def _keep(self, known: _Known) -> _Known:
        if id(known.what) not in self._known:
            self._known[id(known.what)] = known
            self._oldest.append(id(known.what))
            self._chars += known.size
        while len(self._oldest) > _MESSAGES or self._chars > _CHARS:
            self._chars -= self._known.pop(self._oldest.popleft()).size
        return known


def chars(message: Message) -> int:
    if isinstance(message, ToolMessage):
        return sum(len(outcome.output) for outcome in message.outcomes)
    return len(message.text)

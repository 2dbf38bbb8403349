"""What was measured last: a conversation is the same messages turn after turn, and measuring them anew adds up."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from gateway.agent.provider import ToolSpec
from gateway.agent.tokens import ONE_REQUEST, Measure, measure, measure_message, measure_tools, total
from gateway.dialogue import Message, ToolMessage, UserMessage

__all__ = ["Measured", "Measures", "chars"]

_MESSAGES = 8_192
_HELD = 8 * 1024 * 1024
"""Characters, and bytes of pictures."""
_FRAMES = 256


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Measured(NamedTuple):
    message: Message
    """Kept, so that no other can get its identity."""
    sent: Message
    """As the model gets it: without its sender, where everybody knows who that is."""
    measure: Measure
    """Of what is sent."""
    held: int
    """What it keeps in memory."""


class Measures:
    """Knows messages by their identity, the oldest of which are forgotten, by number and by length; and frames.

    A frame is what stands around the messages in every request: system prompt and tools.
    """

    def __init__(self, *, names_senders: bool) -> None:
        self._names_senders = names_senders
        self._known: dict[int, Measured] = {}
        self._oldest: deque[int] = deque()
        self._held = 0
        self._frames: dict[tuple[str, tuple[int, ...]], Measure] = {}
        self._tools: dict[tuple[int, ...], tuple[Sequence[ToolSpec], Measure]] = {}
        """With the tools themselves, so that no others can get their identity."""

    def unknown(self, messages: Sequence[Message]) -> list[Message]:
        return [message for message in messages if id(message) not in self._known]

    def all_known(self, messages: Sequence[Message]) -> list[Measured]:
        """Return what is known of each message; as `known`, and much faster where all are."""
        try:
            return list(map(self._known.__getitem__, map(id, messages)))
        except KeyError:
            return [self.known(message) for message in messages]

    def known(self, message: Message) -> Measured:
        """Return what is known of a message, having measured it if need be."""
        return self._known.get(id(message)) or self.keep(self.anew(message))

    def anew(self, message: Message) -> Measured:
        """Measure a message without remembering it: may be called in any thread."""
        sent = message
        if isinstance(message, UserMessage) and not self._names_senders and (message.sender or message.sender_id):
            sent = UserMessage(text=message.text, is_ours=message.is_ours, pictures=message.pictures)
        return Measured(message, sent, measure_message(sent), _held(message))

    def keep(self, measured: Measured) -> Measured:
        if id(measured.message) not in self._known:
            self._known[id(measured.message)] = measured
            self._oldest.append(id(measured.message))
            self._held += measured.held
        while len(self._oldest) > _MESSAGES or self._held > _HELD:
            self._held -= self._known.pop(self._oldest.popleft()).held
        return measured

    def frame(self, system: str, tools: Sequence[ToolSpec]) -> Measure:
        """Return the measure of a request without messages."""
        names = tuple(map(id, tools))
        if names not in self._tools:
            _make_room(self._tools)
            self._frames.clear()
            self._tools[names] = (tuple(tools), measure_tools(tools))
        known = self._frames.get((system, names))
        if known is None:
            _make_room(self._frames)
            known = self._frames[system, names] = total([ONE_REQUEST, measure(system), self._tools[names][1]])
        return known


def _make_room(frames: dict[_Key, _Value]) -> None:
    if len(frames) >= _FRAMES:
        del frames[next(iter(frames))]


def chars(message: Message) -> int:
    if isinstance(message, ToolMessage):
        return sum(len(outcome.output) for outcome in message.outcomes)
    return len(message.text)


def _held(message: Message) -> int:
    """Return what a message keeps in memory: one with pictures is made anew for each turn."""
    shown = sum(len(picture.data) for picture in message.pictures) if message.pictures else 0
    return chars(message) + shown

"""What was measured last: a conversation is the same messages turn after turn, and measuring them anew adds up."""

from collections import deque
from collections.abc import Sequence
from operator import attrgetter, sub
from typing import NamedTuple, TypeVar

from gateway.agent.provider import ToolSpec
from gateway.agent.tokens import NOTHING, ONE_REQUEST, Measure, measure, measure_message, measure_tools, total
from gateway.dialogue import Message, ToolMessage, UserMessage

__all__ = ["Counted", "Measured", "Measures", "chars"]

_MESSAGES = 8_192
_HELD = 8 * 1024 * 1024
"""Characters, and bytes of pictures."""
_FRAMES = 256
_STEP = 2
"""Messages by which a request is longer than the last one: an answer and the next question, calls and outcomes."""
_WINDOWS = 128
_WIDE = 100_000
"""Characters of a request beyond which it is not kept, so that 128 of them cannot fill the memory."""


_measure_of = attrgetter("measure")

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


class Counted(NamedTuple):
    """The messages of a request, what is known of each, and what they come to."""

    messages: list[Message]
    known: list[Measured]
    measure: Measure


class Measures:
    """Knows messages by their identity, the oldest of which are forgotten, by number and by length; and frames.

    A frame is what stands around the messages in every request: system prompt and tools.
    """

    def __init__(self, *, names_senders: bool) -> None:
        self._names_senders = names_senders
        self._known: dict[int, Measured] = {}
        self._oldest: deque[int] = deque()
        self._held = 0
        self._last: dict[int, Counted] = {}
        """The last request of each conversation, by the identity of its last message."""
        self._frames: dict[tuple[str, tuple[int, ...]], Measure] = {}
        self._tools: dict[tuple[int, ...], tuple[Sequence[ToolSpec], Measure]] = {}
        """With the tools themselves, so that no others can get their identity."""

    def unknown(self, messages: list[Message]) -> list[Message]:
        _, added = self._grown(messages)
        return [message for message in added if id(message) not in self._known]

    def counted(self, messages: list[Message]) -> Counted:
        """Return what the messages of a request come to. What was counted in the last one is not counted again."""
        last, added = self._grown(messages)
        new = list(map(self.known, added))
        measure = total([last.measure, *map(_measure_of, new)])
        counted = Counted(messages, [*last.known, *new], measure)
        self._remember(counted)
        return counted

    def _grown(self, messages: list[Message]) -> tuple[Counted, list[Message]]:
        """Return what was counted of the messages in the last request of their conversation, and the others."""
        last = self._last.get(id(messages[-1 - _STEP])) if len(messages) > _STEP else None
        dropped = 0 if last is None else len(last.messages) - (len(messages) - _STEP)
        if last is None or dropped < 0 or last.messages[dropped:] != messages[:-_STEP]:
            return Counted([], [], NOTHING), messages
        if dropped:
            gone = total(map(_measure_of, last.known[:dropped]))
            last = Counted(messages[:-_STEP], last.known[dropped:], tuple(map(sub, last.measure, gone)))
        return last, messages[-_STEP:]

    def _remember(self, counted: Counted) -> None:
        if not counted.messages or sum(counted.measure) > _WIDE or counted.measure[-1]:
            return
        if len(counted.messages) > _STEP:
            self._last.pop(id(counted.messages[-1 - _STEP]), None)
        self._last[id(counted.messages[-1])] = counted
        _make_room(self._last, _WINDOWS)

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
            self._frames.clear()
            self._tools[names] = (tuple(tools), measure_tools(tools))
            _make_room(self._tools, _FRAMES)
        known = self._frames.get((system, names))
        if known is None:
            known = self._frames[system, names] = total([ONE_REQUEST, measure(system), self._tools[names][1]])
            _make_room(self._frames, _FRAMES)
        return known


def _make_room(kept: dict[_Key, _Value], limit: int) -> None:
    """Forget the oldest where one more is too many."""
    if len(kept) > limit:
        del kept[next(iter(kept))]


def chars(message: Message) -> int:
    if isinstance(message, ToolMessage):
        return sum(len(outcome.output) for outcome in message.outcomes)
    return len(message.text)


def _held(message: Message) -> int:
    """Return what a message keeps in memory: one with pictures is made anew for each turn."""
    shown = sum(len(picture.data) for picture in message.pictures) if message.pictures else 0
    return chars(message) + shown

"""What the model is shown of a session: its entries put together to messages, and as many of them as fit. Pure."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from gateway.conversation import AssistantMessage, Message, Picture, ToolCall, ToolMessage, ToolOutcome, UserMessage
from gateway.sessions import entries as e
from gateway.sessions.at_hand import INTERRUPTED, call_of
from gateway.sessions.counting import counted, standing_summary
from gateway.sessions.editing import edited
from gateway.sessions.entries import Entry, TurnOutcome

__all__ = [
    "SUMMARY",
    "as_head",
    "as_messages",
    "divided",
    "history",
    "shortened",
    "window",
]

SUMMARY = "[Summary of the earlier conversation]\n\n"

_NOT_AGAIN = "[Its images are not shown again, since the answer to them failed. They can be sent again.]"


def history(
    entries: Sequence[Entry], max_messages: int, *, turn: str | None = None, max_chars: int | None = None
) -> list[Message]:
    """Return what the model is shown: at most `max_messages` messages, and all of the turn `turn` after them.

    It starts at a user message, and every tool call is followed by its outcome. A summary stays in front however
    many messages have come since. `max_chars` shortens each message, but for the summary and the current turn.
    """
    before, current = divided(entries, max_messages, turn=turn, max_chars=max_chars)
    return [*before, *current]


def divided(
    entries: Sequence[Entry], max_messages: int, *, turn: str | None = None, max_chars: int | None = None
) -> tuple[list[Message], list[Message]]:
    """Return the two parts of `history`: what was said before the turn `turn`, and that turn."""
    summary = standing_summary(entries)
    counting = counted(entries, enough=max_messages if summary is None else None, turn=turn)
    before = [entry for entry in counting if turn is None or entry.turn != turn]
    current = [entry for entry in counting if turn is not None and entry.turn == turn]
    if summary is None:
        return shortened(window(as_messages(before), max_messages), max_chars), as_messages(current)
    head = as_head(summary)
    older = as_messages(entry for entry in before if entry.seq < summary.from_seq)
    newer = as_messages(entry for entry in before if entry.seq > summary.covers)
    older, newer = window(older, max_messages - 1 - len(newer)), window(newer, max_messages - 1)
    return [*shortened(older, max_chars), head, *shortened(newer, max_chars)], as_messages(current)


def as_head(summary: e.Summary) -> UserMessage:
    """Return a summary as the message that stands for what it covers."""
    return UserMessage(text=SUMMARY + summary.content, is_ours=True)


def window(messages: list[Message], size: int) -> list[Message]:
    """Return the last `size` messages, or fewer, so that they start at a user message.

    Outcomes always follow their calls at once, so such a start cannot split them. When the last turn alone is
    longer, its question is kept and the oldest of its steps go.
    """
    if size < 1:
        return []
    start = max(0, len(messages) - size)
    within = next((at for at in range(start, len(messages)) if isinstance(messages[at], UserMessage)), None)
    if within is not None:
        return messages[within:]
    question = next((message for message in reversed(messages[:start]) if isinstance(message, UserMessage)), None)
    if question is None:
        return []
    steps = messages[start + 1 :]
    if steps and isinstance(steps[0], ToolMessage):
        steps = steps[1:]
    return [question, *steps]


def shortened(messages: list[Message], width: int | None) -> list[Message]:
    return messages if width is None else [_cut(message, width) for message in messages]


def _cut(message: Message, width: int) -> Message:
    if isinstance(message, ToolMessage):
        outcomes = tuple(replace(outcome, output=_ellipsis(outcome.output, width)) for outcome in message.outcomes)
        return replace(message, outcomes=outcomes)
    return replace(message, text=_ellipsis(message.text, width))


def _ellipsis(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def as_messages(entries: Iterable[Entry]) -> list[Message]:
    """Put entries together to messages; consecutive tool calls are one message, their outcomes the next."""
    messages: list[Message] = []
    step = _Step()
    entries = edited(list(entries))
    failed = {entry.turn for entry in entries if isinstance(entry, e.TurnEnd) and entry.outcome is TurnOutcome.FAILED}
    for entry in entries:
        if isinstance(entry, e.User):
            step.close(messages)
            messages.append(_asked(entry, has_failed=entry.turn in failed))
        elif isinstance(entry, e.Assistant):
            step.close(messages)
            step.text = entry.content
        elif isinstance(entry, e.ToolUse):
            if step.is_answered:
                step.close(messages)
            step.calls.setdefault(entry.tool_use_id, call_of(entry))
        elif isinstance(entry, e.ToolResult) and entry.tool_use_id in step.calls:
            step.outcomes.setdefault(entry.tool_use_id, _outcome(entry))
    step.close(messages)
    return messages


def _asked(entry: e.User, *, has_failed: bool) -> UserMessage:
    """Put the notes about its files behind the text. A picture that spoiled its turn must not spoil the next ones."""
    said = UserMessage(text=entry.content, sender=entry.sender_name, sender_id=entry.sender)
    if not entry.attachments:
        return said
    images = [file for file in entry.attachments if file.kind == "image" and file.ref]
    notes = [file.note for file in entry.attachments]
    if images and has_failed:
        return replace(said, text=_paragraphs(entry.content, *notes, _NOT_AGAIN))
    pictures = tuple(Picture(name=file.name, file=file.ref, media_type=file.media_type) for file in images)
    return replace(said, text=_paragraphs(entry.content, *notes), pictures=pictures)


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(filter(None, texts))


class _Step:
    """One step of the model as it is being put together: its text, its calls, and the outcomes seen so far."""

    def __init__(self) -> None:
        self.text = ""
        self.calls: dict[str, ToolCall] = {}
        self.outcomes: dict[str, ToolOutcome] = {}

    @property
    def is_answered(self) -> bool:
        return bool(self.calls) and self.calls.keys() <= self.outcomes.keys()

    def close(self, messages: list[Message]) -> None:
        """Add its messages and begin anew; a call without an outcome gets one that says so."""
        if self.calls:
            outcomes = tuple(self.outcomes.get(call) or _interrupted(call) for call in self.calls)
            messages.append(AssistantMessage(text=self.text, tool_calls=tuple(self.calls.values())))
            messages.append(ToolMessage(outcomes=outcomes))
            self.calls, self.outcomes = {}, {}
        elif self.text:
            messages.append(AssistantMessage(text=self.text))
        self.text = ""


def _outcome(entry: e.ToolResult) -> ToolOutcome:
    return ToolOutcome(id=entry.tool_use_id, output=entry.output, is_error=entry.is_error)


def _interrupted(call: str) -> ToolOutcome:
    return ToolOutcome(id=call, output=INTERRUPTED, is_error=True)

"""What the model is shown of a session: its entries put together to messages, and as many of them as fit. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec.structs import replace

from gateway.conversation import AssistantMessage, Message, Picture, ToolCall, ToolMessage, ToolOutcome, UserMessage
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry, TurnOutcome
from gateway.sessions.turn_progress import INTERRUPTED, to_tool_call

_CONVERSATION = (e.User, e.Assistant, e.ToolUse, e.ToolResult)


def effective_entries(entries: Sequence[Entry], *, enough: int | None = None, turn: str | None = None) -> list[Entry]:
    """Return the entries after the last `clear`, without those of turns that were undone later.

    With `enough`, what lies before that many messages may be left out; those of `turn` are not among them.
    """
    counting: list[Entry] = []
    undone: set[str | None] = set()
    said = 0
    for entry in reversed(entries):
        if isinstance(entry, e.Clear):
            break
        if isinstance(entry, e.Undo):
            undone.add(entry.undone)
        if undone and entry.turn in undone:
            continue
        counting.append(entry)
        if enough is not None and (turn is None or entry.turn != turn) and is_visible(entry):
            said += 1
            if said > enough and isinstance(entry, e.User):
                break
    return counting[::-1]


def undo_last_turn(entries: Sequence[Entry]) -> e.Undo | None:
    """Return the entry that undoes the newest turn which still counts, or None when there is none."""
    counting = effective_entries(entries)
    turn = next((entry.turn for entry in reversed(counting) if isinstance(entry, e.User) and entry.turn), None)
    if turn is None:
        return None
    of_turn = [entry for entry in counting if entry.turn == turn]
    return e.Undo(undone=turn, first=of_turn[0].seq, messages=sum(map(is_visible, of_turn)))


def current_summary(entries: Sequence[Entry]) -> e.Summary | None:
    """Return the newest valid summary. The entries may be a tail, from a checkpoint or from before the summary on."""
    if not any(type(entry) is e.Summary or (type(entry) is e.Checkpoint and entry.summary) for entry in entries):
        return None
    cleared = max((entry.seq for entry in entries if isinstance(entry, e.Clear)), default=0)
    counting = effective_entries(entries)
    undos = [entry for entry in counting if isinstance(entry, e.Undo)]
    for entry in reversed(counting):
        summary = entry.summary if isinstance(entry, e.Checkpoint) else entry
        if isinstance(summary, e.Summary) and cleared < summary.from_seq and is_summary_valid(summary, undos):
            before = next((x for x in reversed(counting) if is_conversation(x) and x.seq <= summary.covers), None)
            after = next((x for x in counting if is_conversation(x) and x.seq > summary.covers), None)
            if is_turn_boundary(before, after):
                return summary
    return None


def is_summary_valid(summary: e.Summary, undos: Iterable[e.Undo]) -> bool:
    """Tell whether `summary` speaks of the past only, and of nothing that was undone since."""
    if not summary.from_seq <= summary.covers < summary.seq:
        return False
    return not any(undo.seq > summary.seq and summary.from_seq <= undo.first <= summary.covers for undo in undos)


def is_conversation(entry: Entry) -> bool:
    """Tell whether it is part of the conversation."""
    return isinstance(entry, _CONVERSATION)


def is_visible(entry: Entry) -> bool:
    """Tell whether a person sees it: an assistant entry without text only carries tool calls."""
    return isinstance(entry, e.User) or (isinstance(entry, e.Assistant) and entry.content != "")


def is_turn_boundary(before: Entry | None, after: Entry | None) -> bool:
    """Tell whether no turn goes on from `before` to `after`, between which a summary ends."""
    return before is None or after is None or before.turn is None or before.turn != after.turn


_EDITED = "[I have changed an earlier message of mine. It now reads:]\n"


def apply_edits(entries: list[Entry]) -> list[Entry]:
    """Let edits take effect. One that came before its message was written down changes it.

    Any other is shown for itself, as something said before the next message, so that it splits no step of a turn.
    """
    if not any(type(entry) is e.Edit for entry in entries):
        return entries
    said = {entry.event_id: at for at, entry in enumerate(entries) if isinstance(entry, e.User) and entry.event_id}
    early = {
        entry.event_id: entry.content
        for at, entry in enumerate(entries)
        if isinstance(entry, e.Edit) and _is_early(entry, at, said)
    }
    shown: list[Entry] = []
    held: list[Entry] = []
    for at, entry in enumerate(entries):
        match entry:
            case e.Edit():
                held += [] if _is_early(entry, at, said) else [_note(entry)]
            case e.User():
                shown += [*held, msgspec.structs.replace(entry, content=early.get(entry.event_id or "", entry.content))]
                held = []
            case _:
                shown.append(entry)
    return [*shown, *held]


def _is_early(edit: e.Edit, at: int, said: Mapping[str, int]) -> bool:
    return said.get(edit.event_id, -1) > at


def _note(edit: e.Edit) -> e.User:
    return e.User(content=f"{_EDITED}{edit.content}", sender_name=edit.sender_name, turn=edit.turn)


# Made once: a union in each `isinstance` would be made anew for each entry.
_SEEN = (e.User, e.Assistant, e.SentFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleLine:
    """One visible line of a session; `role` is `user` or `assistant`."""

    role: str
    text: str
    ts: datetime
    file: e.SentFile | None = None


def visible_lines(entries: Sequence[Entry], limit: int) -> list[VisibleLine]:
    """Return the last `limit` lines that a person sees, oldest first. Summaries are for the model only."""
    if limit < 1:
        return []
    spoken = [_spoken(entry) for entry in effective_entries(entries) if isinstance(entry, _SEEN)]
    return [line for line in spoken if line.text][-limit:]


def _spoken(entry: e.User | e.Assistant | e.SentFile) -> VisibleLine:
    match entry:
        case e.User():
            return VisibleLine(role="user", text=visible_text(entry), ts=entry.ts)
        case e.Assistant():
            return VisibleLine(role="assistant", text=entry.content, ts=entry.ts)
        case e.SentFile():
            return VisibleLine(role="assistant", text=f"[file: {entry.name}]", ts=entry.ts, file=entry)


def visible_text(entry: e.User) -> str:
    """Return what a person sees of a message: its text, and a label for each file."""
    return "\n".join(filter(None, [entry.content, *map(_label, entry.attachments)]))


def _label(file: e.Attached) -> str:
    return f"[{file.kind}: “{file.said}”]" if file.said else f"[{file.kind}: {file.name}]"


SUMMARY_HEADING = "[Summary of the earlier conversation]\n\n"

_NOT_AGAIN = "[Its images are not shown again, since the answer to them failed. They can be sent again.]"


def history_for_model(
    entries: Sequence[Entry], max_messages: int, *, turn: str | None = None, max_chars: int | None = None
) -> list[Message]:
    """Return what the model is shown: at most `max_messages` messages, and all of the turn `turn` after them.

    It starts at a user message, and every tool call is followed by its outcome. A summary stays in front however
    many messages have come since. `max_chars` shortens each message, but for the summary and the current turn.
    """
    before, current = split_history(entries, max_messages, turn=turn, max_chars=max_chars)
    return [*before, *current]


def split_history(
    entries: Sequence[Entry], max_messages: int, *, turn: str | None = None, max_chars: int | None = None
) -> tuple[list[Message], list[Message]]:
    """Return the two parts of `history`: what was said before the turn `turn`, and that turn."""
    summary = current_summary(entries)
    counting = effective_entries(entries, enough=max_messages if summary is None else None, turn=turn)
    before = [entry for entry in counting if turn is None or entry.turn != turn]
    current = [entry for entry in counting if turn is not None and entry.turn == turn]
    if summary is None:
        return shorten_messages(window(to_messages(before), max_messages), max_chars), to_messages(current)
    head = summary_message(summary)
    older = to_messages(entry for entry in before if entry.seq < summary.from_seq)
    newer = to_messages(entry for entry in before if entry.seq > summary.covers)
    older, newer = window(older, max_messages - 1 - len(newer)), window(newer, max_messages - 1)
    return [*shorten_messages(older, max_chars), head, *shorten_messages(newer, max_chars)], to_messages(current)


def summary_message(summary: e.Summary) -> UserMessage:
    """Return a summary as the message that stands for what it covers."""
    return UserMessage(text=SUMMARY_HEADING + summary.content, is_ours=True)


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


def shorten_messages(messages: list[Message], width: int | None) -> list[Message]:
    return messages if width is None else [_cut(message, width) for message in messages]


def _cut(message: Message, width: int) -> Message:
    if isinstance(message, ToolMessage):
        outcomes = tuple(replace(outcome, output=_ellipsis(outcome.output, width)) for outcome in message.outcomes)
        return replace(message, outcomes=outcomes)
    return replace(message, text=_ellipsis(message.text, width))


def _ellipsis(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def to_messages(entries: Iterable[Entry]) -> list[Message]:
    """Put entries together to messages; consecutive tool calls are one message, their outcomes the next."""
    messages: list[Message] = []
    step = _Step()
    entries = apply_edits(list(entries))
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
            step.calls.setdefault(entry.tool_use_id, to_tool_call(entry))
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

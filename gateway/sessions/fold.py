"""What the entries of a session add up to: its state, its history for the model, and what a person sees of it. Pure.

Nothing is ever rewritten in a transcript, so clearing, undoing and summing up are entries too, and take effect here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from gateway.dialogue import AssistantMessage, Message, Picture, ToolCall, ToolMessage, ToolOutcome, UserMessage
from gateway.sessions import entries as e
from gateway.sessions.editing import edited
from gateway.sessions.entries import Entry, SessionState, TurnOutcome
from gateway.text import excerpt

__all__ = [
    "IDLE",
    "INTERRUPTED",
    "SUMMARY",
    "Spoken",
    "advance",
    "as_messages",
    "begin",
    "counted",
    "divided",
    "fold",
    "history",
    "holds",
    "interrupted",
    "is_border",
    "is_spoken",
    "last_turn",
    "lines",
    "plan_at_hand",
    "said",
    "sent_files",
    "shortened",
    "shown",
    "standing_summary",
    "step_at_hand",
    "window",
]

TITLE_WIDTH = 80

INTERRUPTED = (
    "This call was interrupted before its result was recorded. It may have taken effect: check before repeating it."
)

IDLE = "idle"
"""Who completes a session in which nobody has said anything for long."""

# Made once: a union in each `isinstance` would be made anew for each entry.
_SEEN = (e.User, e.Assistant, e.SentFile)
_CONVERSATION = (e.User, e.Assistant, e.ToolUse, e.ToolResult)

_NOT_AGAIN = "[Its images are not shown again, since the answer to them failed. They can be sent again.]"

SUMMARY = "[Summary of the earlier conversation]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """One visible line of a session; `role` is `user` or `assistant`."""

    role: str
    text: str
    ts: datetime
    file: e.SentFile | None = None


def fold(entries: Sequence[Entry]) -> SessionState:
    """Add up all entries; the first has to be the header."""
    header, *rest = entries
    if not isinstance(header, e.Header):
        raise TypeError("a transcript starts with its header")
    state = begin(header)
    for entry in rest:
        state = advance(state, entry)
    return state


def begin(header: e.Header) -> SessionState:
    return SessionState(
        number=header.number,
        agent=header.agent,
        created_at=header.created,
        updated_at=header.created,
        last_accessed=header.ts,
        seq=header.seq,
        epoch=header.epoch,
        highest_number=max(header.highest_number, header.number),
    )


def advance(state: SessionState, entry: Entry) -> SessionState:
    """Add one entry to what all before it add up to."""
    seq = max(state.seq, entry.seq)
    # A clock that was set back must not make a session look old enough to be removed.
    accessed = max(state.last_accessed, entry.ts) if _touches(entry) else state.last_accessed
    return msgspec.structs.replace(state, seq=seq, last_accessed=accessed, **_change(state, entry))


def _touches(entry: Entry) -> bool:
    """Tell whether somebody did something, rather than we ourselves for want of it."""
    return not isinstance(entry, e.Checkpoint) and not (isinstance(entry, e.Status) and entry.by == IDLE)


def _change(state: SessionState, entry: Entry) -> dict[str, object]:  # noqa: C901, PLR0911, PLR0912 - a table of types.
    match entry:
        case e.User() | e.Assistant():
            return _said(state, entry)
        case e.TurnEnd():
            return {"turns": state.turns + 1}
        case e.Clear():
            return {"messages": 0, "turns": 0, "first": 0, "has_summary": False}
        case e.Summary():
            return {"has_summary": True, **_used(state, entry.usage)}
        case e.Checkpoint():
            return {"checkpoint": entry.seq, "checkpoint_at": entry.state.size}
        case e.Undo():
            return {"messages": max(0, state.messages - entry.messages), "turns": max(0, state.turns - 1)}
        case e.Title():
            return {"title": excerpt(entry.value, TITLE_WIDTH)}
        case e.Workspace():
            return {"workspace": entry.value}
        case e.Agent():
            return {"agent": entry.value}
        case e.Model():
            return {"model": entry.value}
        case e.Status():
            return {"status": entry.value}
        case e.Activated():
            return {
                "epoch": max(state.epoch, entry.epoch),
                "highest_number": max(state.highest_number, entry.highest_number),
            }
        case _:
            return {}


def _said(state: SessionState, entry: e.User | e.Assistant) -> dict[str, object]:
    title = state.title
    if not title and isinstance(entry, e.User):
        title = excerpt(entry.content or shown(entry), TITLE_WIDTH)
    return {
        "title": title,
        "messages": state.messages + _is_visible(entry),
        "updated_at": max(state.updated_at, entry.ts),
        "first": state.first or entry.seq,
        **(_used(state, entry.usage) if isinstance(entry, e.Assistant) else {}),
    }


def _used(state: SessionState, usage: e.Usage | None) -> dict[str, object]:
    if usage is None:
        return {}
    return {
        "input_tokens": state.input_tokens + usage.input_tokens,
        "cached_tokens": state.cached_tokens + usage.cached_tokens,
        "output_tokens": state.output_tokens + usage.output_tokens,
        "cost_micros": state.cost_micros + usage.cost_micros,
    }


def _is_visible(entry: Entry) -> bool:
    """Tell whether a person sees it: an assistant entry without text only carries tool calls."""
    return isinstance(entry, e.User) or (isinstance(entry, e.Assistant) and entry.content != "")


def last_turn(entries: Sequence[Entry]) -> e.Undo | None:
    """Return the entry that undoes the newest turn which still counts, or None when there is none."""
    counting = counted(entries)
    turn = next((entry.turn for entry in reversed(counting) if isinstance(entry, e.User) and entry.turn), None)
    if turn is None:
        return None
    of_turn = [entry for entry in counting if entry.turn == turn]
    return e.Undo(undone=turn, first=of_turn[0].seq, messages=sum(map(_is_visible, of_turn)))


def plan_at_hand(entries: Sequence[Entry]) -> e.Plan | None:
    """Return the newest plan of the turn that has not ended, if it has told one."""
    for entry in reversed(entries):
        if isinstance(entry, e.Plan):
            return entry
        if isinstance(entry, e.TurnEnd):
            return None
    return None


def said(entries: Sequence[Entry], turn: str) -> list[str]:
    """Return what the model has said in the steps of `turn` that are finished."""
    return [entry.content for entry in entries if isinstance(entry, e.Assistant) and entry.turn == turn]


def interrupted(entries: Sequence[Entry], turn: str) -> list[Entry]:
    """Return results for the tool calls of `turn` that have none: they were running when the daemon ended."""
    results = {entry.tool_use_id for entry in entries if isinstance(entry, e.ToolResult) and entry.turn == turn}
    calls = [entry for entry in entries if isinstance(entry, e.ToolUse) and entry.turn == turn]
    return [
        e.ToolResult(tool_use_id=call.tool_use_id, output=INTERRUPTED, is_error=True)
        for call in calls
        if call.tool_use_id not in results
    ]


def step_at_hand(entries: Sequence[Entry], turn: str) -> tuple[dict[str, ToolCall], dict[str, e.Approval]]:
    """Return the calls of the last step of `turn` that have no result, and what was asked, or decided, about each.

    Of several decisions the first counts. Ids are unique within a step only, so earlier steps do not matter.
    """
    calls: dict[str, ToolCall] = {}
    approvals: dict[str, e.Approval] = {}
    for entry in entries:
        if entry.turn != turn:
            continue
        match entry:
            case e.Assistant():
                calls, approvals = {}, {}
            case e.ToolUse():
                calls[entry.tool_use_id] = _call(entry)
            case e.ToolResult():
                calls.pop(entry.tool_use_id, None)
            case e.Approval(tool_use_id=str(call)) if call not in approvals or approvals[call].decision is None:
                approvals[call] = entry
            case _:
                continue
    return calls, approvals


def lines(entries: Sequence[Entry], limit: int) -> list[Spoken]:
    """Return the last `limit` lines that a person sees, oldest first. Summaries are for the model only."""
    if limit < 1:
        return []
    spoken = [_spoken(entry) for entry in counted(entries) if isinstance(entry, _SEEN)]
    return [line for line in spoken if line.text][-limit:]


def _spoken(entry: e.User | e.Assistant | e.SentFile) -> Spoken:
    match entry:
        case e.User():
            return Spoken(role="user", text=shown(entry), ts=entry.ts)
        case e.Assistant():
            return Spoken(role="assistant", text=entry.content, ts=entry.ts)
        case e.SentFile():
            return Spoken(role="assistant", text=f"[file: {entry.name}]", ts=entry.ts, file=entry)


def shown(entry: e.User) -> str:
    """Return what a person sees of a message: its text, and a label for each file."""
    return "\n".join(filter(None, [entry.content, *map(_label, entry.attachments)]))


def _label(file: e.Attached) -> str:
    return f"[{file.kind}: “{file.said}”]" if file.said else f"[{file.kind}: {file.name}]"


def sent_files(entries: Iterable[Entry], turn: str) -> list[e.SentFile]:
    """Return the files that go with the answer of `turn`."""
    return [entry for entry in entries if isinstance(entry, e.SentFile) and entry.turn == turn]


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
    head = UserMessage(text=SUMMARY + summary.content, is_ours=True)
    older = as_messages(entry for entry in before if entry.seq < summary.from_seq)
    newer = as_messages(entry for entry in before if entry.seq > summary.covers)
    older, newer = window(older, max_messages - 1 - len(newer)), window(newer, max_messages - 1)
    return [*shortened(older, max_chars), head, *shortened(newer, max_chars)], as_messages(current)


def counted(entries: Sequence[Entry], *, enough: int | None = None, turn: str | None = None) -> list[Entry]:
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
        if enough is not None and (turn is None or entry.turn != turn) and _is_visible(entry):
            said += 1
            if said > enough and isinstance(entry, e.User):
                break
    return counting[::-1]


def standing_summary(entries: Sequence[Entry]) -> e.Summary | None:
    """Return the newest valid summary. The entries may be a tail, from a checkpoint or from before the summary on."""
    if not any(type(entry) is e.Summary or (type(entry) is e.Checkpoint and entry.summary) for entry in entries):
        return None
    cleared = max((entry.seq for entry in entries if isinstance(entry, e.Clear)), default=0)
    counting = counted(entries)
    undos = [entry for entry in counting if isinstance(entry, e.Undo)]
    for entry in reversed(counting):
        summary = entry.summary if isinstance(entry, e.Checkpoint) else entry
        if isinstance(summary, e.Summary) and cleared < summary.from_seq and holds(summary, undos):
            before = next((x for x in reversed(counting) if is_spoken(x) and x.seq <= summary.covers), None)
            after = next((x for x in counting if is_spoken(x) and x.seq > summary.covers), None)
            if is_border(before, after):
                return summary
    return None


def holds(summary: e.Summary, undos: Iterable[e.Undo]) -> bool:
    """Tell whether `summary` speaks of the past only, and of nothing that was undone since."""
    if not summary.from_seq <= summary.covers < summary.seq:
        return False
    return not any(undo.seq > summary.seq and summary.from_seq <= undo.first <= summary.covers for undo in undos)


def is_spoken(entry: Entry) -> bool:
    """Tell whether it is part of the conversation."""
    return isinstance(entry, _CONVERSATION)


def is_border(before: Entry | None, after: Entry | None) -> bool:
    """Tell whether no turn goes on from `before` to `after`, between which a summary ends."""
    return before is None or after is None or before.turn is None or before.turn != after.turn


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
            step.calls.setdefault(entry.tool_use_id, _call(entry))
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


def _call(entry: e.ToolUse) -> ToolCall:
    return ToolCall(id=entry.tool_use_id, name=entry.name, input=entry.input, fault=entry.fault)


def _outcome(entry: e.ToolResult) -> ToolOutcome:
    return ToolOutcome(id=entry.tool_use_id, output=entry.output, is_error=entry.is_error)


def _interrupted(call: str) -> ToolOutcome:
    return ToolOutcome(id=call, output=INTERRUPTED, is_error=True)

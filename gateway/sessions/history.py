"""The history of a session: its entries as messages for the model, or as lines for a person. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from gateway.conversation import AssistantMessage, Message, Picture, ToolCall, ToolMessage, ToolOutcome, UserMessage
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry, TurnOutcome
from gateway.sessions.turn_progress import INTERRUPTED, to_tool_call

_CONVERSATION = (e.User, e.Assistant, e.ToolUse, e.ToolResult)

SUMMARY_HEADING = "[Summary of the earlier conversation]\n\n"
_EDITED = "[I have edited an earlier message. It now says:]\n"
_NOT_SHOWN_AGAIN = "[The images are not shown again, because the answer to them failed. They can be sent again.]"


def effective_entries(entries: Sequence[Entry], *, enough: int | None = None, turn: str | None = None) -> list[Entry]:
    """Return the entries after the last `clear`, without those of undone turns.

    With `enough`, entries before that many visible messages may be left out; messages of `turn` do not count.
    """
    effective: list[Entry] = []
    undone: set[str | None] = set()
    visible = 0
    for entry in reversed(entries):
        if isinstance(entry, e.Clear):
            break
        if isinstance(entry, e.Undo):
            undone.add(entry.undone)
        if undone and entry.turn in undone:
            continue
        effective.append(entry)
        if enough is not None and (turn is None or entry.turn != turn) and is_visible(entry):
            visible += 1
            # One more than enough, and at a question: the window never starts inside a turn.
            if visible > enough and isinstance(entry, e.User):
                break
    return effective[::-1]


def undo_last_turn(entries: Sequence[Entry]) -> e.Undo | None:
    """Return the entry that undoes the newest turn, or None if there is no turn."""
    effective = effective_entries(entries)
    turn = next((entry.turn for entry in reversed(effective) if isinstance(entry, e.User) and entry.turn), None)
    return None if turn is None else undo_turn(effective, turn)


def undo_turn(entries: Sequence[Entry], turn: str) -> e.Undo:
    """Return the entry that undoes a turn. `entries` has all of its entries."""
    of_turn = [entry for entry in entries if entry.turn == turn]
    return e.Undo(undone=turn, first=of_turn[0].seq, messages=sum(map(is_visible, of_turn)))


def current_summary(entries: Sequence[Entry]) -> e.Summary | None:
    """Return the newest valid summary. The entries may be a tail that starts at a checkpoint or before the summary."""
    # Most sessions have no summary. This check is much cheaper than the search below.
    if not any(type(entry) is e.Summary or (type(entry) is e.Checkpoint and entry.summary) for entry in entries):
        return None
    cleared = max((entry.seq for entry in entries if isinstance(entry, e.Clear)), default=0)
    effective = effective_entries(entries)
    undos = [entry for entry in effective if isinstance(entry, e.Undo)]
    for entry in reversed(effective):
        summary = entry.summary if isinstance(entry, e.Checkpoint) else entry
        if isinstance(summary, e.Summary) and cleared < summary.from_seq and is_summary_valid(summary, undos):
            before = next((x for x in reversed(effective) if is_conversation(x) and x.seq <= summary.covers), None)
            after = next((x for x in effective if is_conversation(x) and x.seq > summary.covers), None)
            if is_turn_boundary(before, after):
                return summary
    return None


def is_summary_valid(summary: e.Summary, undos: Iterable[e.Undo]) -> bool:
    """Return True if `summary` covers earlier entries only, and no turn of them was undone later."""
    if not summary.from_seq <= summary.covers < summary.seq:
        return False
    return not any(undo.seq > summary.seq and summary.from_seq <= undo.first <= summary.covers for undo in undos)


def is_conversation(entry: Entry) -> bool:
    """Return True for messages, tool calls and their results."""
    return isinstance(entry, _CONVERSATION)


def is_visible(entry: Entry) -> bool:
    """Return True for messages that a person sees. An assistant entry without text only carries tool calls.

    The sentences of the gateway are shown to people, but they are not messages.
    """
    return isinstance(entry, e.User) or (isinstance(entry, e.Assistant) and entry.content != "")


def is_turn_boundary(before: Entry | None, after: Entry | None) -> bool:
    """Return True if `before` and `after`, where a summary ends, do not belong to the same turn."""
    return before is None or after is None or before.turn is None or before.turn != after.turn


def apply_edits(entries: list[Entry]) -> list[Entry]:
    """Apply edits of messages. An edit that precedes its message in the transcript changes the message.

    Any other edit becomes a separate message in front of the next message, so that it splits no step of a turn.
    """
    if not any(type(entry) is e.Edit for entry in entries):
        return entries
    positions = {entry.event_id: at for at, entry in enumerate(entries) if isinstance(entry, e.User) and entry.event_id}
    changed = {
        entry.event_id: entry.content
        for at, entry in enumerate(entries)
        if isinstance(entry, e.Edit) and positions.get(entry.event_id, -1) > at
    }
    result: list[Entry] = []
    held: list[Entry] = []
    for at, entry in enumerate(entries):
        match entry:
            case e.Edit():
                if positions.get(entry.event_id, -1) <= at:
                    text = f"{_EDITED}{entry.content}"
                    held.append(e.User(content=text, sender_name=entry.sender_name, turn=entry.turn))
            case e.User():
                content = changed.get(entry.event_id or "", entry.content)
                result += [*held, replace(entry, content=content)]
                held = []
            case _:
                result.append(entry)
    return [*result, *held]


class VisibleLine(Struct, frozen=True, kw_only=True):
    """One message or file as a person sees it. `role` is `user`, `assistant`, or `gateway` for its own sentences.

    Only users have an `event_id`.
    """

    role: str
    text: str
    ts: datetime
    file: e.SentFile | None = None
    is_failure: bool = False
    """The line says why there is no answer."""
    details: str = ""
    """The cause in technical words, for owners."""
    event_id: str | None = None
    turn: str | None = None


def visible_lines(entries: Sequence[Entry], limit: int) -> list[VisibleLine]:
    """Return the last `limit` lines that a person sees, oldest first. Summaries are for the model only.

    The files of a turn follow its text, as they do when the answer is delivered.
    """
    if limit < 1:
        return []
    lines: list[VisibleLine] = []
    files: list[VisibleLine] = []
    for entry in effective_entries(entries):
        if files and entry.turn != files[0].turn:
            lines += files
            files = []
        line = visible_line(entry)
        if line is not None:
            (files if line.file is not None else lines).append(line)
    return [*lines, *files][-limit:]


def visible_line(entry: Entry) -> VisibleLine | None:
    """Return an entry as a person sees it. None if they don't."""
    ts, turn = entry.ts, entry.turn
    match entry:
        case e.User():
            line = VisibleLine(role="user", text=visible_text(entry), ts=ts, event_id=entry.event_id, turn=turn)
        case e.Assistant():
            line = VisibleLine(role="assistant", text=entry.content, ts=ts, turn=turn)
        case e.System():
            is_failure, details = entry.is_failure, entry.details
            line = VisibleLine(
                role="gateway", text=entry.content, ts=ts, turn=turn, is_failure=is_failure, details=details
            )
        case e.SentFile():
            line = VisibleLine(role="assistant", text=f"[file: {entry.name}]", ts=ts, turn=turn, file=entry)
        case _:
            return None
    return line if line.text else None


def visible_text(entry: e.User) -> str:
    """Return the text of a message with a label for each file."""
    labels = [
        f"[{file.kind}: “{file.said}”]" if file.said else f"[{file.kind}: {file.name}]" for file in entry.attachments
    ]
    return "\n".join(filter(None, [entry.content, *labels]))


def history_for_model(
    entries: Sequence[Entry], max_messages: int, *, turn: str | None = None, max_chars: int | None = None
) -> list[Message]:
    """Return the messages for the model: at most `max_messages`, and the whole of `turn` after them.

    The history starts at a user message, and every tool call is followed by its outcome. A summary stays in front,
    however many messages follow. `max_chars` shortens each message, except the summary and the current turn.
    """
    before, current = split_history(entries, max_messages, turn=turn, max_chars=max_chars)
    return [*before, *current]


def split_history(
    entries: Sequence[Entry], max_messages: int, *, turn: str | None = None, max_chars: int | None = None
) -> tuple[list[Message], list[Message]]:
    """Return the history in two parts: the messages before `turn`, and those of `turn`."""
    summary = current_summary(entries)
    effective = effective_entries(entries, enough=max_messages if summary is None else None, turn=turn)
    before = [entry for entry in effective if turn is None or entry.turn != turn]
    current = [entry for entry in effective if turn is not None and entry.turn == turn]
    if summary is None:
        return shorten_messages(window(to_messages(before), max_messages), max_chars), to_messages(current)
    older = to_messages(entry for entry in before if entry.seq < summary.from_seq)
    newer = to_messages(entry for entry in before if entry.seq > summary.covers)
    older, newer = window(older, max_messages - 1 - len(newer)), window(newer, max_messages - 1)
    head = summary_message(summary)
    return [*shorten_messages(older, max_chars), head, *shorten_messages(newer, max_chars)], to_messages(current)


def summary_message(summary: e.Summary) -> UserMessage:
    """Return a summary as the message that replaces the part it covers."""
    return UserMessage(text=SUMMARY_HEADING + summary.content, is_ours=True)


def window(messages: list[Message], size: int) -> list[Message]:
    """Return the last `size` messages or fewer, so that they start at a user message.

    Outcomes directly follow their calls, so this start cannot separate them. If the last turn alone is longer, its
    question is kept and its oldest steps are dropped.
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
    # One place is taken by the question. Outcomes without their calls would be invalid for the model.
    steps = messages[start + 1 :]
    if steps and isinstance(steps[0], ToolMessage):
        steps = steps[1:]
    return [question, *steps]


def shorten_messages(messages: list[Message], width: int | None) -> list[Message]:
    """Cut each text to `width` characters; None: leave them as they are."""
    if width is None:
        return messages

    def cut(text: str) -> str:
        return text if len(text) <= width else text[: width - 1] + "…"

    return [
        replace(message, outcomes=tuple(replace(outcome, output=cut(outcome.output)) for outcome in message.outcomes))
        if isinstance(message, ToolMessage)
        else replace(message, text=cut(message.text))
        for message in messages
    ]


def to_messages(entries: Iterable[Entry]) -> list[Message]:
    """Combine entries to messages. Consecutive tool calls are one message, and their outcomes the next one."""
    messages: list[Message] = []
    text = ""
    calls: dict[str, ToolCall] = {}
    outcomes: dict[str, ToolOutcome] = {}

    def close_step() -> None:
        """Add the messages of a step of the model. A call without an outcome was interrupted."""
        nonlocal text
        if calls:
            messages.append(AssistantMessage(text=text, tool_calls=tuple(calls.values())))
            each = (outcomes.get(call) or ToolOutcome(id=call, output=INTERRUPTED, is_error=True) for call in calls)
            messages.append(ToolMessage(outcomes=tuple(each)))
            calls.clear()
            outcomes.clear()
        elif text:
            messages.append(AssistantMessage(text=text))
        text = ""

    entries = apply_edits(list(entries))
    failed = {entry.turn for entry in entries if isinstance(entry, e.TurnEnd) and entry.outcome is TurnOutcome.FAILED}
    for entry in entries:
        if isinstance(entry, e.User):
            close_step()
            messages.append(_user_message(entry, has_failed=entry.turn in failed))
        elif isinstance(entry, e.Assistant):
            close_step()
            text = entry.content
        elif isinstance(entry, e.ToolUse):
            # A call after all outcomes belongs to the next step, even if the model wrote no text before it.
            if calls and calls.keys() <= outcomes.keys():
                close_step()
            calls.setdefault(entry.tool_use_id, to_tool_call(entry))
        elif isinstance(entry, e.ToolResult) and entry.tool_use_id in calls:
            outcome = ToolOutcome(id=entry.tool_use_id, output=entry.output, is_error=entry.is_error)
            outcomes.setdefault(entry.tool_use_id, outcome)
    close_step()
    return messages


def _user_message(entry: e.User, *, has_failed: bool) -> UserMessage:
    message = UserMessage(text=entry.content, sender=entry.sender_name, sender_id=entry.sender, schedule=entry.schedule)
    if not entry.attachments:
        return message
    images = [file for file in entry.attachments if file.kind == "image" and file.ref]
    texts = [entry.content, *(file.note for file in entry.attachments)]
    if images and has_failed:
        # The image may be the reason for the failure. Shown again, it would fail every later turn.
        texts.append(_NOT_SHOWN_AGAIN)
        images = []
    pictures = tuple(Picture(name=file.name, file=file.ref, media_type=file.media_type) for file in images)
    return replace(message, text="\n\n".join(filter(None, texts)), pictures=pictures)

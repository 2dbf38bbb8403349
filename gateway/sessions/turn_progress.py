"""The progress of an unfinished turn, from its entries: for a turn that resumes after a crash or an approval. Pure."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from gateway.conversation import ToolCall
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry

INTERRUPTED = (
    "This call was interrupted before its result was recorded. It may have taken effect: check before repeating it."
)


def current_plan(entries: Sequence[Entry]) -> e.Plan | None:
    """Return the newest plan of the running turn, or None."""
    for entry in reversed(entries):
        if isinstance(entry, e.Plan):
            return entry
        if isinstance(entry, e.TurnEnd):
            return None
    return None


def unfinished_message(entries: Sequence[Entry]) -> e.User | None:
    """Return the message whose turn has no end, or None. Turns don't overlap, so that can only be the last one."""
    for entry in reversed(entries):
        if isinstance(entry, e.TurnEnd | e.Undo | e.Clear):
            return None
        if isinstance(entry, e.User) and entry.turn is not None:
            return entry
    return None


def assistant_texts(entries: Sequence[Entry], turn: str) -> list[str]:
    """Return the texts of the model in the finished steps of `turn`."""
    return [entry.content for entry in entries if isinstance(entry, e.Assistant) and entry.turn == turn]


def sent_files(entries: Iterable[Entry], turn: str) -> list[e.SentFile]:
    """Return the files that are part of the answer of `turn`."""
    return [entry for entry in entries if isinstance(entry, e.SentFile) and entry.turn == turn]


def interrupted_results(entries: Sequence[Entry], turn: str) -> list[Entry]:
    """Return results for the tool calls of `turn` that have none. They were running when the daemon stopped."""
    results = {entry.tool_use_id for entry in entries if isinstance(entry, e.ToolResult) and entry.turn == turn}
    calls = [entry for entry in entries if isinstance(entry, e.ToolUse) and entry.turn == turn]
    return [
        e.ToolResult(tool_use_id=call.tool_use_id, output=INTERRUPTED, is_error=True)
        for call in calls
        if call.tool_use_id not in results
    ]


def open_tool_calls(entries: Sequence[Entry], turn: str) -> tuple[dict[str, ToolCall], dict[str, e.Approval]]:
    """Return the tool calls of `turn` that have no result, and the approval of each, if any.

    The newest question about a call counts, with its first decision. Call ids are unique within a step only, so a new
    call of the same id replaces the one before.
    """
    calls: dict[str, ToolCall] = {}
    approvals: dict[str, e.Approval] = {}
    for entry in entries:
        if entry.turn != turn:
            continue
        match entry:
            case e.ToolUse():
                calls[entry.tool_use_id] = to_tool_call(entry)
                approvals.pop(entry.tool_use_id, None)
            case e.ToolUpdate() if entry.tool_use_id in calls:
                changed = replace(calls[entry.tool_use_id], name=entry.name, input=entry.input, title=entry.title)
                calls[entry.tool_use_id] = changed
            case e.ToolResult():
                calls.pop(entry.tool_use_id, None)
            case e.Approval(tool_use_id=str(call)):
                before = approvals.get(call)
                if before is None or before.approval_id != entry.approval_id:
                    # The newest one is the last: a coding agent may ask again about a call that it has changed.
                    approvals.pop(call, None)
                    approvals[call] = entry
                elif before.decision is None:
                    approvals[call] = entry
            case _:
                continue
    return calls, approvals


def to_tool_call(entry: e.ToolUse) -> ToolCall:
    return ToolCall(id=entry.tool_use_id, name=entry.name, input=entry.input, fault=entry.fault, title=entry.title)

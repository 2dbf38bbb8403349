"""The progress of an interrupted turn."""

from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.turn_progress import open_tool_calls


def test_open_tool_calls_are_those_of_the_last_step_with_their_approvals() -> None:
    """A model may use the same id in two steps. An approval of the first does not count for the second."""
    use = e.ToolUse(tool_use_id="c", name="shell", input={}, turn="t")
    other = e.ToolUse(tool_use_id="d", name="shell", input={"x": 1}, turn="t")
    asked = e.Approval(approval_id="q", tool_use_id="c", question="May I?", turn="t")
    entries: list[Entry] = [
        e.Assistant(content="first", turn="t"),
        use,
        e.Approval(approval_id="p", tool_use_id="c", question="May I?", turn="t"),
        e.Approval(approval_id="p", tool_use_id="c", decision="approved", turn="t"),
        e.ToolResult(tool_use_id="c", output="done", turn="t"),
        e.Assistant(content="second", turn="t"),
        use,
        other,
        asked,
        e.Approval(approval_id="q", tool_use_id="c", decision="denied", turn="other"),
    ]
    calls, approvals = open_tool_calls(entries, "t")
    assert list(calls) == ["c", "d"]
    assert approvals == {"c": asked}
    denied = e.Approval(approval_id="q", tool_use_id="c", decision="denied", turn="t")
    late = e.Approval(approval_id="q", tool_use_id="c", decision="approved", turn="t")
    assert open_tool_calls([*entries, denied, late], "t")[1] == {"c": denied}


def test_an_answer_does_not_count_for_a_later_question_about_the_same_call() -> None:
    """A coding agent asked, changed the call, and asked again. After a restart, the first yes answered both."""
    asked_again = e.Approval(approval_id="r", tool_use_id="c", question="May I?", turn="t")
    entries: list[Entry] = [
        e.ToolUse(tool_use_id="c", name="execute", input={"command": "ls"}, turn="t"),
        e.Approval(approval_id="p", tool_use_id="c", question="May I?", turn="t"),
        e.Approval(approval_id="p", tool_use_id="c", decision="approved", turn="t"),
        e.ToolUse(tool_use_id="d", name="execute", input={"command": "pwd"}, turn="t"),
        e.Approval(approval_id="q", tool_use_id="d", question="May I?", turn="t"),
        e.Approval(approval_id="q", tool_use_id="d", decision="approved", turn="t"),
        e.ToolUpdate(tool_use_id="c", name="execute", input={"command": "rm -r ."}, turn="t"),
        asked_again,
    ]
    _, approvals = open_tool_calls(entries, "t")
    assert approvals["c"] is asked_again
    assert list(approvals) == ["d", "c"]

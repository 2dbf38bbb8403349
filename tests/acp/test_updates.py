"""What a coding agent reports becomes the events of a turn."""

import difflib
from time import monotonic
from typing import Any

import pytest
from acp import schema
from hypothesis import given
from hypothesis import strategies as st

from gateway.acp.updates import (
    MAX_INPUT_CHARS,
    MAX_TEXT_CHARS,
    MAX_TURN_CHARS,
    TurnUpdates,
    shorten,
    token_usage,
    unified_diff,
)
from gateway.agent.protocol import (
    Done,
    Event,
    PlannedStep,
    PlanUpdated,
    TextDelta,
    TokenUsage,
    ToolChanged,
    ToolFinished,
    ToolReported,
)
from gateway.errors import AgentFailed

texts = st.lists(st.sampled_from(["a", "b", "c d", "e"]), min_size=1, max_size=30)


def update(**fields: Any) -> Any:  # noqa: ANN401 - one of the SDK's types.
    return schema.SessionNotification.model_validate({"sessionId": "s", "update": fields}).update


def text(words: str, message: str | None = None) -> Any:  # noqa: ANN401
    fields = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": words}}
    return update(**fields, **({"messageId": message} if message else {}))


def call(name: str = "1", *, started: bool = False, **fields: Any) -> Any:  # noqa: ANN401
    kind = "tool_call" if started else "tool_call_update"
    return update(sessionUpdate=kind, toolCallId=name, **fields)


def events_of(*given: Any, ending: str = "") -> list[Event]:  # noqa: ANN401
    updates = TurnUpdates()
    events = [event for each in given for event in updates.add(each)]
    return [*events, *updates.close_calls(), updates.finish(ending)]


def test_text_is_passed_on_as_it_comes() -> None:
    assert events_of(text("Hel"), text("lo")) == [
        TextDelta(text="Hel"),
        TextDelta(text="lo"),
        Done(text="Hello", steps=1),
    ]


def test_another_message_is_another_paragraph() -> None:
    assert events_of(text("one", "a"), text("two", "b"))[-1] == Done(text="one\n\ntwo", steps=1)


def test_a_turn_without_any_text_says_so() -> None:
    [done] = events_of()
    assert isinstance(done, Done)
    assert "without an answer" in done.text


def test_the_reason_of_an_early_end_follows_the_text() -> None:
    assert events_of(text("so far"), ending="It stopped.")[-1] == Done(text="so far\n\n*It stopped.*", steps=1)


def test_a_call_is_reported_with_the_text_before_it_and_finished() -> None:
    first, reported, finished, second, done = events_of(
        text("I look."),
        call(started=True, title="ls", kind="execute", status="in_progress", rawInput={"command": "ls"}),
        call(status="completed", content=[{"type": "content", "content": {"type": "text", "text": "a.txt"}}]),
        text("One file."),
    )
    assert first == TextDelta(text="I look.")
    assert isinstance(reported, ToolReported)
    assert (reported.text, reported.call.name, reported.call.title) == ("I look.", "execute", "ls")
    assert reported.call.input == {"command": "ls"}
    assert isinstance(finished, ToolFinished)
    assert (finished.call.id, finished.outcome.output) == (reported.call.id, "a.txt")
    assert (second, done) == (TextDelta(text="One file."), Done(text="One file.", steps=1))


def test_a_call_without_arguments_is_reported_once_they_are_known() -> None:
    reported, finished, _ = events_of(
        text(""),
        call(started=True, title="Terminal", kind="execute", status="pending", rawInput={}),
        call(title="echo hi", rawInput={"command": "echo hi"}),
        call(status="completed", rawOutput="hi"),
        text("x"),
    )[:3]
    assert isinstance(reported, ToolReported)
    assert reported.call.title == "echo hi"
    assert isinstance(finished, ToolFinished)
    assert finished.outcome.output == "hi"


def test_an_update_of_an_unknown_call_creates_it() -> None:
    reported, finished = events_of(call("new", title="touch x", kind="execute", status="completed"), text("x"))[:2]
    assert isinstance(reported, ToolReported)
    assert isinstance(finished, ToolFinished)
    assert finished.call.id == reported.call.id


def test_a_reused_id_is_a_new_call() -> None:
    begun: dict[str, Any] = {"title": "ls", "kind": "execute", "rawInput": {"command": "ls"}, "status": "in_progress"}
    given = [call(started=True, **begun), call(status="completed")] * 2
    reported = [event for event in events_of(*given) if isinstance(event, ToolReported)]
    assert len({event.call.id for event in reported}) == 2


def test_changed_arguments_are_reported_as_a_change() -> None:
    events = events_of(
        call(started=True, title="ls", kind="execute", rawInput={"command": "ls"}, status="in_progress"),
        call(title="ls -l", rawInput={"command": "ls -l"}),
    )
    assert [event.call.title for event in events if isinstance(event, ToolChanged)] == ["ls -l"]


def test_diffs_are_kept_with_the_result() -> None:
    diff = {"type": "diff", "path": "/repo/a.txt", "oldText": "one\ntwo\n", "newText": "one\n2\n"}
    events = events_of(call(title="Edit", kind="edit", status="completed", content=[diff]))
    [finished] = [event for event in events if isinstance(event, ToolFinished)]
    [change] = finished.outcome.diffs
    assert change.path == "/repo/a.txt"
    assert change.diff.splitlines() == ["@@ -1,2 +1,2 @@", " one", "-two", "+2"]


def test_a_call_without_arguments_shows_its_diff() -> None:
    diff = {"type": "diff", "path": "/repo/a.txt", "newText": "x\n"}
    [reported] = [e for e in events_of(call(title="Edit", kind="edit", content=[diff])) if isinstance(e, ToolReported)]
    assert reported.call.input == {"path": "/repo/a.txt", "diff": "@@ -0,0 +1 @@\n+x"}


def test_a_file_that_is_named_without_its_folder_later_has_one_diff() -> None:
    asked = {"type": "diff", "path": "/repo/src/a.txt", "newText": "x\n"}
    events = events_of(
        call(title="Edit", kind="edit", content=[asked]),
        call(status="completed", content=[{**asked, "path": "a.txt"}]),
    )
    [finished] = [event for event in events if isinstance(event, ToolFinished)]
    assert [each.path for each in finished.outcome.diffs] == ["/repo/src/a.txt"]


def test_output_in_the_metadata_of_codex_is_found() -> None:
    meta = {"terminal_output_delta": {"data": "hi\n"}}
    events = events_of(call(title="ls", kind="execute", status="completed", _meta=meta))
    assert [event.outcome.output for event in events if isinstance(event, ToolFinished)] == ["hi\n"]


def test_calls_that_the_agent_leaves_open_get_a_result() -> None:
    updates = TurnUpdates()
    asked = schema.ToolCallUpdate.model_validate({"toolCallId": "1", "title": "rm x", "kind": "execute"})
    assert len(list(updates.ask(asked))) == 1
    updates.deny(asked)
    [finished] = updates.close_calls()
    assert isinstance(finished, ToolFinished)
    assert finished.outcome.is_error
    assert "not approved" in finished.outcome.output


@pytest.mark.parametrize("ending", ["", "The agent cancelled its work."])
def test_an_agent_that_stops_after_a_denial_without_a_word_is_explained(ending: str) -> None:
    updates = TurnUpdates()
    asked = schema.ToolCallUpdate.model_validate({"toolCallId": "1", "title": "rm x", "kind": "execute"})
    list(updates.ask(asked))
    updates.deny(asked)
    assert "because this was not approved" in updates.finish(ending).text


def test_text_after_a_finished_call_is_another_paragraph() -> None:
    events = events_of(
        call(kind="edit", title="a", status="in_progress"), text("one"), call(status="completed"), text("two")
    )
    assert events[-1] == Done(text="one\n\ntwo", steps=1)


def test_the_whole_title_is_asked_about_if_it_is_all_there_is() -> None:
    """Gemini CLI has the command only there. Two commands with the same beginning must not look the same."""
    command = "echo " + "x" * 500 + "; rm -rf src"
    [reported] = [
        e for e in events_of(call(title=command, kind="execute", status="completed")) if isinstance(e, ToolReported)
    ]
    assert reported.call.input == {"title": command}
    assert len(reported.call.title) <= 200


def test_the_message_of_an_error_is_the_result() -> None:
    events = events_of(call(kind="execute", title="ls", status="failed", rawOutput={"message": "No.", "code": "x"}))
    assert [event.outcome.output for event in events if isinstance(event, ToolFinished)] == ["No."]


def test_a_plan_is_passed_on() -> None:
    entries = [{"content": "look", "priority": "high", "status": "completed"}]
    assert events_of(update(sessionUpdate="plan", entries=entries))[0] == PlanUpdated(
        steps=(PlannedStep(content="look", status="completed"),)
    )


def test_too_much_text_is_a_failure() -> None:
    with pytest.raises(AgentFailed, match="too much"):
        events_of(text("x" * (MAX_TEXT_CHARS + 1)))


def test_too_many_open_calls_are_a_failure() -> None:
    with pytest.raises(AgentFailed, match="too many tool calls"):
        events_of(*(call(str(number), title="x") for number in range(1000)))


def test_long_arguments_keep_a_digest() -> None:
    """Otherwise a call that was allowed for good could stand for another one with the same start and end."""
    one, other = ("a" * 200_000 + middle + "b" * 200_000 for middle in "xy")
    inputs = []
    for content in (one, other):
        events = events_of(call(title="w", kind="edit", rawInput={"content": content}))
        inputs += [event.call.input for event in events if isinstance(event, ToolReported)]
    assert inputs[0] != inputs[1]
    assert all(len(str(given["content"])) < 110_000 for given in inputs)


def test_the_model_cannot_send_invalid_unicode() -> None:
    assert events_of(text("a\x00b"))[-1] == Done(text="ab", steps=1) or "\x00" not in str(events_of(text("a\x00b")))


@pytest.mark.parametrize(
    ("response", "tokens"),
    [
        ({"usage": {"totalTokens": 5, "inputTokens": 3, "outputTokens": 2}}, (3, 2)),
        ({"_meta": {"quota": {"token_count": {"input_tokens": 3, "output_tokens": 2}}}}, (3, 2)),
        ({"_meta": {"quota": {"token_count": "many"}}}, None),
        ({}, None),
    ],
)
def test_usage_is_read_where_each_agent_has_it(response: dict[str, Any], tokens: tuple[int, int] | None) -> None:
    usage = token_usage(schema.PromptResponse.model_validate({"stopReason": "end_turn", **response}))
    assert (usage and (usage.input_tokens, usage.output_tokens)) == tokens


def test_usage_of_single_steps_is_added_up() -> None:
    updates = TurnUpdates()
    meta = {"usage": {"inputTokens": 120, "outputTokens": 30}}
    chunk = update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": ""}, _meta=meta)
    for _ in range(2):
        list(updates.add(chunk))
    assert updates.take_usage() == TokenUsage(input_tokens=240, output_tokens=60)
    assert updates.take_usage() is None


def test_a_huge_file_is_not_compared() -> None:
    assert unified_diff("x\n" * 300_000, "y\n" * 300_000).startswith("@@ 300,000 lines replaced by 300,000 @@")


def test_a_long_text_keeps_both_ends() -> None:
    short = shorten("a" * 100 + "b" * 100, 60)
    assert short.startswith("a" * 40)
    assert short.endswith("b" * 20)
    assert "140 characters left out" in short


def test_lines_that_repeat_in_an_unlucky_order_are_compared_at_once() -> None:
    """They took 20 seconds, in which the whole gateway waited."""
    old = "\n".join(str(number % 100) for number in range(10_000))
    new = "\n".join(str(number * 7 % 100) for number in range(10_000))
    began = monotonic()
    diff = unified_diff(old, new)
    assert monotonic() - began < 2
    assert diff.startswith("@@ -1,10000 +1,10000 @@\n") or " 0\n" in diff


@given(texts, texts)
def test_a_diff_is_the_usual_unified_diff(old: list[str], new: list[str]) -> None:
    usual = list(difflib.unified_diff(old, new, lineterm=""))[2:]
    assert unified_diff("\n".join(old), "\n".join(new)).split("\n") == (usual or [""])


def edit_of(*files: tuple[str, str, str]) -> Any:  # noqa: ANN401
    content = [{"type": "diff", "path": path, "oldText": old, "newText": new} for path, old, new in files]
    return call(kind="edit", title="Edit", status="pending", content=content)


def input_of(reported: Any) -> object:  # noqa: ANN401
    [event, *_] = events_of(reported)
    assert isinstance(event, ToolReported)
    return event.call.input


def test_long_changes_that_look_the_same_are_different_calls() -> None:
    """Otherwise a call that was allowed for good would stand for others."""
    one, other = ("\n".join([f"{number} {word}" for number in range(40_000)]) for word in ("good", "evil"))
    assert input_of(edit_of(("a.py", "", one))) != input_of(edit_of(("a.py", "", other)))
    many = [(f"{number}.py", "", "same") for number in range(300)]
    assert input_of(edit_of(*many)) != input_of(edit_of(*many[:-1], ("299.py", "", "evil")))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"args": ["x"] * 300 + ["good"]}, {"args": ["x"] * 300 + ["evil"]}),
        ({"args": dict.fromkeys(map(str, range(300)), 1)}, {"args": dict.fromkeys(map(str, range(299)), 1) | {"x": 1}}),
        (dict.fromkeys(map(str, range(300)), "1"), dict.fromkeys(map(str, range(299)), "1") | {"x": "1"}),
        ({"a" * 300 + "good": 1}, {"a" * 300 + "evil": 1}),
        ({"a": ["x" * 150_000, "good", "x" * 150_000]}, {"a": ["x" * 150_000, "evil", "x" * 150_000]}),
    ],
)
def test_long_arguments_that_begin_the_same_are_different_calls(one: object, other: object) -> None:
    first, second = (input_of(call(title="Run", status="pending", rawInput=each)) for each in (one, other))
    assert first != second


def test_nested_arguments_are_limited_too() -> None:
    """One call could put 20 MB into the transcript."""
    given = {"files": [{"content": "x" * 90_000} for _ in range(200)]}
    assert len(str(input_of(call(title="Run", status="pending", rawInput=given)))) < 2 * MAX_INPUT_CHARS


def test_a_plan_that_is_repeated_is_recorded_once() -> None:
    plan = update(sessionUpdate="plan", entries=[{"content": "Look", "status": "pending", "priority": "low"}])
    assert [type(event) for event in events_of(plan, plan)] == [PlanUpdated, Done]


@pytest.mark.parametrize("kind", ["plan", "call", "result"])
def test_updates_without_end_are_stopped(kind: str) -> None:
    """Each is recorded, so they would fill the disk."""

    def number_of(number: int) -> Any:  # noqa: ANN401
        words = f"{number} " + "x" * 40_000
        entries = [{"content": f"{number} " + "x" * 1_900, "status": "pending", "priority": "low"}] * 20
        if kind == "plan":
            return update(sessionUpdate="plan", entries=entries)
        if kind == "call":
            return call(status="in_progress", rawInput={"command": words})
        return call(status="completed", content=[{"type": "content", "content": {"type": "text", "text": words}}])

    with pytest.raises(AgentFailed, match="too much in one turn"):
        events_of(*map(number_of, range(MAX_TURN_CHARS // 30_000)))


def test_data_that_is_nested_too_deeply_ends_the_turn_with_a_reason() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    reported = call(title="Run", status="completed")
    reported.raw_output = nested
    with pytest.raises(AgentFailed, match="nested too deeply"):
        events_of(reported)

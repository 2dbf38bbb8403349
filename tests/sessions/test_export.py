import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sessions import Entry, SessionMeta
from gateway.sessions import entries as e
from gateway.sessions.export import (
    Export,
    JsonExport,
    MarkdownExport,
    StatementBuilder,
    export_pieces,
    undone_turns,
)
from gateway.sessions.session import fold, meta_of
from gateway.text import printable
from tests.sessions.samples import SCOPE, START, conversation, dialogue, header, marks, sealed

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202eevil"


def meta(entries: Sequence[Entry]) -> SessionMeta:
    return meta_of(SCOPE, fold(entries))


def export_text(export: Export, source: Iterable[Entry]) -> str:
    return "".join([*map(export.feed, source), export.finish()])


def statements(entries: Sequence[Entry], undone: Sequence[str] = ()) -> list[tuple[str, str, int]]:
    made = StatementBuilder(undone)
    found = [*(said for entry in entries for said in made.feed(entry)), *made.finish()]
    return [(said.role, said.content, len(said.tool_calls)) for said in found]


def test_json_has_exactly_the_documented_fields() -> None:
    entries = sealed(dialogue(1))
    assert json.loads(export_text(JsonExport(meta(entries)), entries)) == {
        "session_id": "web_ann",
        "channel": "web",
        "chat_id": "ann",
        "created_at": START.isoformat(),
        "last_accessed": (START + timedelta(seconds=7)).isoformat(),
        "messages": [
            _message("user", "question of t1", 3),
            _message("assistant", "", 4, [{"id": "call", "name": "time", "input": {}}]),
            _message("tool_result", "noon", 5),
            _message("assistant", "answer of t1", 6),
        ],
    }


def _message(role: str, content: str, second: int, tool_calls: Sequence[object] = ()) -> dict[str, object]:
    at = START + timedelta(seconds=second)
    return {"role": role, "content": content, "timestamp": at.isoformat(), "tool_calls": list(tool_calls)}


def test_json_without_a_known_origin_still_names_the_chat() -> None:
    entries = sealed([header()])
    found = json.loads(export_text(JsonExport(meta(entries)), entries[1:]))
    assert (found["session_id"], found["messages"]) == (f"unknown_{SCOPE}", [])


@given(st.lists(conversation | marks, max_size=20))
def test_a_json_export_is_valid_for_any_content(said: list[Entry]) -> None:
    entries = sealed([header(), *said])
    found = json.loads(export_text(JsonExport(meta(entries)), entries))
    assert {message["role"] for message in found["messages"]} <= {"user", "assistant", "tool_result"}


@given(st.lists(conversation | marks, max_size=20))
def test_every_message_and_call_is_exported_once(said: list[Entry]) -> None:
    entries = sealed([header(), *said])
    told = statements(entries)
    assert [text for role, text, _ in told if role == "user"] == [x.content for x in said if isinstance(x, e.User)]
    assert sum(calls for _, _, calls in told) == sum(isinstance(entry, e.ToolUse) for entry in said)
    assert [text for role, text, _ in told if role == "tool_result"] == [
        x.output for x in said if isinstance(x, e.ToolResult)
    ]


def test_tool_calls_after_an_answer_belong_to_it() -> None:
    said = [
        e.Assistant(content="let me see"),
        e.ToolUse(tool_use_id="a", name="time", input={}),
        e.ToolUse(tool_use_id="b", name="time", input={}),
        e.ToolResult(tool_use_id="a", output="noon"),
        e.ToolResult(tool_use_id="b", output="one"),
        e.Assistant(content=""),
    ]
    assert statements(sealed(said)) == [
        ("assistant", "let me see", 2),
        ("tool_result", "noon", 0),
        ("tool_result", "one", 0),
    ]


@pytest.mark.parametrize("kind", [MarkdownExport, JsonExport])
async def test_an_export_leaves_out_undone_turns_and_keeps_cleared_ones(
    kind: Callable[[SessionMeta, set[str]], Export],
) -> None:
    entries = sealed([*dialogue(2), e.Undo(undone="t2", first=8, messages=2), e.Clear()])
    export = kind(meta(entries), await undone_turns(streamed(entries)))
    text = "".join([piece async for piece in export_pieces(export, streamed(entries))])
    assert ("question of t1" in text, "question of t2" in text) == (True, False)


async def streamed(entries: Sequence[Entry]) -> AsyncIterator[Entry]:
    for entry in entries:
        yield entry


def test_markdown_reads_like_a_conversation() -> None:
    entries = sealed([*dialogue(1), e.User(content="thanks", sender_name="Ann")])
    assert export_text(MarkdownExport(meta(entries)), entries) == MARKDOWN


MARKDOWN = f"""# question of t1

- Session 1 of `{SCOPE}`, active
- Agent: main
- Started 2026-03-01 00:00:00 UTC, last used 2026-03-01 00:00:08 UTC

## User, 2026-03-01 00:00:03 UTC

question of t1

## Assistant, 2026-03-01 00:00:04 UTC

Called `time`:

```json
{{}}
```

## Tool result, 2026-03-01 00:00:05 UTC

```
noon
```

## Assistant, 2026-03-01 00:00:06 UTC

answer of t1

## User (Ann), 2026-03-01 00:00:08 UTC

thanks
"""


def test_a_failure_is_in_the_markdown_export_and_not_in_the_json_export() -> None:
    entries = sealed([*dialogue(1), e.User(content="thanks"), e.System(content="The model is down.", is_failure=True)])
    text = export_text(MarkdownExport(meta(entries)), entries)
    assert text.endswith("## Gateway, 2026-03-01 00:00:09 UTC\n\nThe model is down.\n")
    messages = json.loads(export_text(JsonExport(meta(entries)), entries))["messages"]
    assert [message["content"] for message in messages] == ["question of t1", "", "noon", "answer of t1", "thanks"]


def test_an_empty_session_can_be_exported() -> None:
    entries = sealed([header()])
    assert export_text(MarkdownExport(meta(entries)), []).startswith("# Session 1\n")
    assert json.loads(export_text(JsonExport(meta(entries)), []))["messages"] == []


def test_tool_output_cannot_close_its_code_fence() -> None:
    entries = sealed([header(), e.ToolResult(tool_use_id="a", output="```\n# forged\n````")])
    text = export_text(MarkdownExport(meta(entries)), entries)
    assert "`````\n```\n# forged\n````\n`````\n" in text


def test_markdown_contains_no_control_characters() -> None:
    said = [
        e.User(content=HOSTILE, sender_name=HOSTILE),
        e.ToolUse(tool_use_id="a", name=HOSTILE, input={HOSTILE: HOSTILE}),
        e.ToolResult(tool_use_id="a", output=HOSTILE),
    ]
    entries = sealed([header(), *said])
    text = export_text(MarkdownExport(meta(entries)), entries)
    assert text == printable(text)
    assert "evil" in text

"""Turns the session updates of a coding agent into the events of a turn. Pure."""

import difflib
import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import accumulate
from typing import Any

from acp import schema
from msgspec import Struct, field

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
    new_call_id,
)
from gateway.conversation import FileDiff, Json, ToolCall, ToolOutcome
from gateway.errors import AgentFailed
from gateway.text import clean, excerpt

MAX_TEXT_CHARS = 1024 * 1024
"""For the text between two tool calls."""
MAX_TURN_CHARS = 64 * 1024 * 1024
"""For everything that is recorded of one turn. Nothing else keeps a program from filling the disk with updates."""
MAX_OUTPUT_CHARS = 48_000
MAX_INPUT_CHARS = 100_000
MAX_DIFF_CHARS = 100_000
"""For all files of one call together."""
MAX_DIFFED_CHARS = 400_000
"""Longer files are not compared line by line."""
MAX_DIFF_STEPS = 1_000_000
"""For all files of one update together: about a tenth of a second, in which the whole gateway waits."""
MAX_DIFFS = 200
MAX_OPEN_CALLS = 200
MAX_PLAN_STEPS = 100
_TITLE_WIDTH = 200
_TEXT_WIDTH = 2_000
_NO_KIND = "other"
_NO_ANSWER = "The agent ended without an answer. Please ask again, or rephrase your message."
_NO_RESULT = "The agent reported no result."
_STOPPED_BY_DENIAL = "The agent stopped, because this was not approved. Tell it what to do instead."
_DENIED = "This was not approved, so it was not done."
_FINISHED = ("completed", "failed")
_ENTRY_CHARS = 200
"""What an entry takes besides its texts."""

CallUpdate = schema.ToolCallStart | schema.ToolCallProgress | schema.ToolCallUpdate
Update = Any  # One of the SDK's update types. They share no base class of their own.


class _Call(Struct, kw_only=True):
    """A tool call as the agent has reported it so far. `id` is ours: agents reuse theirs."""

    id: str
    kind: str = _NO_KIND
    title: str = ""
    """All of it: with some agents, it is the only place that has the command."""
    raw_input: dict[str, Json] = field(default_factory=dict)
    paths: str = ""
    output: str = ""
    raw_output: str = ""
    terminal_output: str = ""
    diffs: dict[str, FileDiff] = field(default_factory=dict)
    diffs_digest: str = ""
    """Of the files before and after, if `diffs` does not show all of the change."""
    reported: ToolCall | None = None
    """As the events have it; None until it was reported."""
    is_denied: bool = False

    def as_call(self) -> ToolCall:
        given = self.raw_input
        if not given and self.diffs:
            given = {"path": ", ".join(self.diffs), "diff": "\n".join(each.diff for each in self.diffs.values())}
            if self.diffs_digest:
                given["sha256 of all of it"] = self.diffs_digest
        if not given:
            given = {"title": self.title, "paths": self.paths} if self.paths else {"title": self.title}
        return ToolCall(id=self.id, name=self.kind, input=given, title=excerpt(self.title, _TITLE_WIDTH))

    def as_outcome(self, *, is_error: bool) -> ToolOutcome:
        output = self.output or self.raw_output or self.terminal_output or (_DENIED if self.is_denied else "")
        return ToolOutcome(id=self.id, output=output, is_error=is_error, diffs=tuple(self.diffs.values()))


class TurnUpdates:
    """Collects what the agent reports in one turn. Its words are untrusted: limited in size, and made valid Unicode."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._text_left = MAX_TEXT_CHARS
        self._turn_left = MAX_TURN_CHARS
        self._plan: tuple[PlannedStep, ...] = ()
        self._has_written = False
        self._message_id: str | None = None
        self._starts_paragraph = False
        self._was_denied = False
        self._calls: dict[str, _Call] = {}
        self.usage: TokenUsage | None = None
        """The tokens that the agent has reported in its updates."""
        self._usage: TokenUsage | None = None

    def add(self, update: Update) -> Iterator[Event]:
        """Yield the events of one update. Raises `AgentFailed` if the agent exceeds a limit."""
        match update:
            case schema.AgentMessageChunk():
                self._add_usage(update.field_meta)
                yield from self._add_text(_text_of(update.content), update.message_id)
            case schema.ToolCallStart():
                # After its end, the id belongs to a new call.
                call = self._calls.get(update.tool_call_id) or self._new_call(update.tool_call_id)
                yield from self._change(update.tool_call_id, call, update)
            case schema.ToolCallProgress():
                # Some agents send updates of calls that they have not reported before.
                call = self._calls.get(update.tool_call_id) or self._new_call(update.tool_call_id)
                yield from self._change(update.tool_call_id, call, update)
            case schema.AgentPlanUpdate():
                steps = tuple(
                    PlannedStep(content=excerpt(clean(entry.content), _TEXT_WIDTH), status=entry.status)
                    for entry in update.entries[:MAX_PLAN_STEPS]
                )
                if steps != self._plan:  # Some agents repeat it with each step.
                    self._plan = steps
                    self._count(sum(_ENTRY_CHARS + len(step.content) for step in steps))
                    yield PlanUpdated(steps=steps)
            case _:  # Modes, lists of commands, titles, thoughts and the size of the context are not part of the turn.
                pass

    def ask(self, update: schema.ToolCallUpdate) -> Iterator[Event]:
        """Yield the events that must be recorded before a person is asked about a call: `call_of` has it then."""
        call = self._calls.get(update.tool_call_id) or self._new_call(update.tool_call_id)
        self._merge(call, update)
        yield from self._report(call)

    def call_of(self, update: schema.ToolCallUpdate) -> ToolCall:
        return self._calls[update.tool_call_id].as_call()

    def deny(self, update: schema.ToolCallUpdate) -> None:
        """Note that a person has denied a call. Some agents report no result for it."""
        self._calls[update.tool_call_id].is_denied = self._was_denied = True

    def close_calls(self) -> Iterator[Event]:
        """Yield the results of calls that the agent has left open at the end of a prompt."""
        for call in self._calls.values():
            yield from self._report(call)
            output = _DENIED if call.is_denied else call.output or call.terminal_output or _NO_RESULT
            outcome = ToolOutcome(id=call.id, output=output, is_error=call.is_denied, diffs=())
            yield ToolFinished(call=call.as_call(), outcome=outcome)
        self._calls.clear()

    def finish(self, ending: str = "") -> Done:
        """Return the end of the turn. `ending` says why the agent has stopped, if it has not just finished."""
        if self._was_denied and (ending or not self._has_written):  # Some agents stop without a word.
            ending = _STOPPED_BY_DENIAL
        texts = [self._take_text().strip("\n"), ending and f"*{ending}*"]
        text = "\n\n".join(filter(None, texts))
        return Done(text=text if text or self._has_written else _NO_ANSWER, steps=1)

    def take_usage(self) -> TokenUsage | None:
        """Return the tokens that the agent has reported in its updates since the last call."""
        usage, self._usage = self._usage, None
        return usage

    def _add_text(self, text: str, message_id: str | None) -> Iterator[TextDelta]:
        if not text:
            return
        # Another message of the agent is another paragraph. Not all agents number them.
        if self._texts and (message_id != self._message_id or self._starts_paragraph):
            text = f"\n\n{text}"
        self._message_id, self._starts_paragraph = message_id, False
        self._text_left -= len(text)
        if self._text_left < 0:
            raise AgentFailed("The agent wrote too much at once, so I stopped it.")
        self._turn_left -= len(text)
        self._texts.append(text)
        self._has_written = True
        yield TextDelta(text=text)

    def _add_usage(self, meta: dict[str, Any] | None) -> None:
        """Count the tokens that qwen-code reports with each step, instead of at the end."""
        counted = (meta or {}).get("usage")
        if not isinstance(counted, dict):
            return
        read, written = counted.get("inputTokens"), counted.get("outputTokens")
        if isinstance(read, int) and isinstance(written, int):
            before = self._usage or TokenUsage(input_tokens=0, output_tokens=0)
            self._usage = TokenUsage(
                input_tokens=before.input_tokens + max(read, 0), output_tokens=before.output_tokens + max(written, 0)
            )

    def _take_text(self) -> str:
        text = "".join(self._texts)
        self._texts, self._text_left = [], MAX_TEXT_CHARS
        return text

    def _new_call(self, agent_id: str) -> _Call:
        if len(self._calls) >= MAX_OPEN_CALLS:
            raise AgentFailed("The agent started too many tool calls at once, so I stopped it.")
        call = self._calls[agent_id] = _Call(id=new_call_id())
        return call

    def _change(
        self, agent_id: str, call: _Call, update: schema.ToolCallStart | schema.ToolCallProgress
    ) -> Iterator[Event]:
        self._merge(call, update)
        is_finished = update.status in _FINISHED
        # Some agents report a call before they know its arguments. Then the next update has them.
        if call.raw_input or call.diffs or update.status not in {None, "pending"} or call.reported is not None:
            yield from self._report(call)
        if is_finished:
            del self._calls[agent_id]
            self._starts_paragraph = True
            outcome = call.as_outcome(is_error=update.status == "failed")
            self._count(len(outcome.output) + sum(len(each.diff) for each in outcome.diffs))
            yield ToolFinished(call=call.as_call(), outcome=outcome)

    def _count(self, chars: int) -> None:
        self._turn_left -= _ENTRY_CHARS + chars
        if self._turn_left < 0:
            raise AgentFailed("The agent reported too much in one turn, so I stopped it.")

    def _report(self, call: _Call) -> Iterator[Event]:
        current = call.as_call()
        if call.reported != current:
            self._count(len(str(current.input)))
        if call.reported is None:
            yield ToolReported(text=self._take_text(), call=current)
        elif call.reported != current:
            yield ToolChanged(call=current)
        call.reported = current

    def _merge(
        self, call: _Call, update: schema.ToolCallStart | schema.ToolCallProgress | schema.ToolCallUpdate
    ) -> None:
        """Take over the fields that the update has. It leaves out those that have not changed."""
        try:
            self._merge_fields(call, update)
        except RecursionError:
            raise AgentFailed("The agent sent data that is nested too deeply, so I stopped it.") from None

    def _merge_fields(
        self, call: _Call, update: schema.ToolCallStart | schema.ToolCallProgress | schema.ToolCallUpdate
    ) -> None:
        if update.kind:
            call.kind = update.kind
        if update.title:
            call.title = _identifiable(clean(update.title), MAX_INPUT_CHARS)
        if isinstance(update.raw_input, dict) and update.raw_input:
            call.raw_input = _limited(update.raw_input)
        if update.locations:
            call.paths = _identifiable(clean(", ".join(location.path for location in update.locations)), _TEXT_WIDTH)
        if update.content:
            texts = [
                _text_of(each.content) for each in update.content if isinstance(each, schema.ContentToolCallContent)
            ]
            if text := "\n".join(filter(None, texts)):
                call.output = shorten(text)
            if edits := [each for each in update.content if isinstance(each, schema.FileEditToolCallContent)]:
                self._add_diffs(call, edits)
        if update.raw_output is not None:
            call.raw_output = shorten(_raw_text(update.raw_output))
        delta = (update.field_meta or {}).get("terminal_output_delta")  # codex-acp has the output only here.
        if isinstance(delta, dict) and isinstance(data := delta.get("data"), str):
            call.terminal_output = shorten(call.terminal_output + clean(data))

    def _add_diffs(self, call: _Call, edits: Sequence[schema.FileEditToolCallContent]) -> None:
        is_cut = len(edits) > MAX_DIFFS
        for edit in edits[:MAX_DIFFS]:
            path = _identifiable(clean(edit.path), _TITLE_WIDTH)
            # qwen-code asks with the path of the file, and reports its name.
            path = next((known for known in call.diffs if known.endswith(f"/{path}")), path)
            if path not in call.diffs and len(call.diffs) >= MAX_DIFFS:
                is_cut = True
                continue
            left = MAX_DIFF_CHARS - sum(len(each.diff) for name, each in call.diffs.items() if name != path)
            old, new = clean(edit.old_text or ""), clean(edit.new_text)
            diff = unified_diff(old, new, max_steps=MAX_DIFF_STEPS // len(edits))
            shown = shorten(diff, max(left, 200))
            is_cut = is_cut or shown != diff or len(old) + len(new) > MAX_DIFFED_CHARS
            call.diffs[path] = FileDiff(path=path, diff=shown)
        if is_cut:
            # A call that was allowed for good must not stand for another one whose diff looks the same.
            whole = json.dumps([[edit.path, edit.old_text, edit.new_text] for edit in edits])
            call.diffs_digest = sha256(whole.encode()).hexdigest()


def unified_diff(old: str, new: str, *, max_steps: int = MAX_DIFF_STEPS) -> str:
    """Return the change of a text as a unified diff without a header. Long texts are only counted."""
    if len(old) + len(new) > MAX_DIFFED_CHARS:
        return f"@@ {len(old.splitlines()):,} lines replaced by {len(new.splitlines()):,} @@\n"
    before, after = old.splitlines(), new.splitlines()
    lines: list[str] = []
    for group in _BoundedMatcher(before, after, max_steps).get_grouped_opcodes():
        first, last = group[0], group[-1]
        lines.append(f"@@ -{_line_range(first[1], last[2])} +{_line_range(first[3], last[4])} @@")
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                lines += [f" {line}" for line in before[old_from:old_to]]
                continue
            lines += [f"-{line}" for line in before[old_from:old_to]]
            lines += [f"+{line}" for line in after[new_from:new_to]]
    return "\n".join(lines)


class _BoundedMatcher(difflib.SequenceMatcher[str]):
    """Looks for equal lines until its steps are used up. What is left then counts as replaced.

    Without that, a few thousand short lines in an unlucky order take minutes.
    """

    b2j: dict[str, list[int]]  # Documented, but missing in the type stubs.

    def __init__(self, old: Sequence[str], new: Sequence[str], max_steps: int) -> None:
        super().__init__(None, old, new)
        self._steps_left = max_steps
        # A search looks at all places in `new` of each line of its part of `old`.
        places = (1 + len(self.b2j.get(line, ())) for line in old)
        self._steps_before = list(accumulate(places, initial=0))

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        self._steps_left -= self._steps_before[-1 if ahi is None else ahi] - self._steps_before[alo]
        if self._steps_left < 0:
            return difflib.Match(alo, blo, 0)
        return super().find_longest_match(alo, ahi, blo, bhi)


def _line_range(start: int, end: int) -> str:
    """Return lines as in the head of a hunk. An empty range names the line before it."""
    if end - start == 1:
        return f"{start + 1}"
    return f"{start + 1 if end > start else start},{end - start}"


def shorten(text: str, limit: int = MAX_OUTPUT_CHARS) -> str:
    """Keep the start and the end of a long text."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit - limit * 2 // 3
    return f"{text[:head]}\n[... {len(text) - limit:,} characters left out ...]\n{text[-tail:]}"


def token_usage(response: schema.PromptResponse) -> TokenUsage | None:
    """Return the tokens of a turn. Without `usage`, gemini-cli has them in the metadata."""
    quota = (response.field_meta or {}).get("quota")
    quota = quota if isinstance(quota, dict) else {}
    models = quota.get("model_usage")
    first = models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}
    model = clean(str(first.get("model") or ""))[:_TITLE_WIDTH]
    if (usage := response.usage) is not None:
        return TokenUsage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_read_tokens or 0,
            cache_write_tokens=usage.cached_write_tokens or 0,
            model=model,
        )
    counted = quota.get("token_count")
    if not isinstance(counted, dict):
        return None
    read, written = counted.get("input_tokens"), counted.get("output_tokens")
    if not isinstance(read, int) or not isinstance(written, int):
        return None
    return TokenUsage(input_tokens=max(read, 0), output_tokens=max(written, 0), model=model)


def _text_of(content: object) -> str:
    """Return a content block as text. Anything but text is only named."""
    match content:
        case schema.TextContentBlock():
            return clean(content.text)
        case schema.ResourceContentBlock():
            return clean(content.uri)
        case schema.EmbeddedResourceContentBlock():
            return clean(getattr(content.resource, "text", "") or f"[{content.resource.uri}]")
        case schema.ImageContentBlock() | schema.AudioContentBlock():
            return f"[{content.type}]"
        case _:
            return ""


def _raw_text(value: Any) -> str:  # noqa: ANN401 - JSON of a shape that only the agent knows.
    if isinstance(value, str):
        return clean(value)
    for name in ("output", "message"):
        if isinstance(value, dict) and isinstance(text := value.get(name), str):
            return clean(text)
    return clean(json.dumps(value, ensure_ascii=False))


def _identifiable(text: str, limit: int) -> str:
    """Shorten a long text. With a digest, so that a call that was allowed for good never stands for another one."""
    if len(text) <= limit:
        return text
    return f"{shorten(text, limit)}\n[sha256 of all of it: {sha256(text.encode()).hexdigest()}]"


def _limited(given: dict[str, Any]) -> dict[str, Json]:
    """Return the arguments of a call with valid Unicode. Long ones are shortened, so that all fit together."""
    limit = max(MAX_INPUT_CHARS // len(given), 200)
    items = list(given.items())
    limited = {_identifiable(clean(name), _TITLE_WIDTH): _limited_value(value, limit) for name, value in items[:100]}
    if len(items) > 100:  # noqa: PLR2004 - more than any tool has.
        limited["the other arguments"] = _limited_value(dict(items[100:]), limit)
    return limited


def _limited_value(value: Any, limit: int) -> Json:  # noqa: ANN401 - JSON.
    if isinstance(value, str):
        return _identifiable(clean(value), limit)
    text = clean(json.dumps(value, ensure_ascii=False))
    if len(text) > limit or _is_deep(value):
        return _identifiable(text, limit)
    cleaned: Json = json.loads(text)
    return cleaned


def _is_deep(value: Any, levels: int = 8) -> bool:  # noqa: ANN401 - JSON.
    """Return whether a value has more than `levels` levels. It is kept as text then: not everyone can read it back."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return False
    return levels == 0 or any(_is_deep(item, levels - 1) for item in value)

"""The agent loop: model, tools, model, ... until the model gives an answer."""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager

import msgspec
from msgspec.structs import replace

from gateway.agent.protocol import (
    MAX_TOOL_CALL_BYTES,
    TOOL_CALL_TOO_LONG,
    Chunk,
    Done,
    Event,
    PlannedStep,
    PlanUpdated,
    Prompt,
    Provider,
    StepDone,
    TextDelta,
    TokenUsage,
    ToolFinished,
    ToolStarted,
    new_call_id,
)
from gateway.agent.toolbox.chat import plan
from gateway.agent.tools import Toolbox, ToolContext
from gateway.conversation import AssistantMessage, Json, Message, Thought, ToolCall, ToolMessage, ToolOutcome
from gateway.errors import ProviderFailed
from gateway.text import clean

MAX_TEXT_CHARS = 1024 * 1024
"""For one step."""

_TEXT_TOO_LONG = "The answer became too long, so I stopped the model. Please ask for less at once."
_NO_ANSWER = "The model ended without an answer. Please ask again, or rephrase your message."
_LOOPING = (
    "I stopped because I was going in circles: I kept calling {tools} with the same results. "
    "Please tell me more about what you need."
)
_TOO_MANY_STEPS = "I stopped after {steps} steps without an answer. Say “go on” if I should continue."

Approve = Callable[[ToolCall], Awaitable[str | None]]
"""Asks a person whether a call may run. Returns None for yes, or the reason for no as a sentence for the model."""

Verify = Callable[[ToolCall], AbstractAsyncContextManager[str | None]]
"""Is entered right before an approved call runs, and left after it. Yields None if the approval still holds, or else a
reason as above."""

NewMessages = Callable[[], Awaitable[Sequence[Message]]]
"""Returns the messages that arrived since the turn began and that the next step has to know. Often there are none."""


async def deny_approval(call: ToolCall) -> str | None:
    return f"The tool {call.name} needs a person's approval, and no one can be asked here. It was not run."


@asynccontextmanager
async def no_change(_call: ToolCall) -> AsyncIterator[str | None]:
    yield None


async def no_new_messages() -> Sequence[Message]:
    return ()


async def run_agent(
    prompt: Prompt,
    *,
    provider: Provider,
    toolbox: Toolbox,
    context: ToolContext,
    max_iterations: int,
    approve: Approve = deny_approval,
    verify: Verify = no_change,
    new_messages: NewMessages = no_new_messages,
) -> AsyncGenerator[Event, None]:
    """Run one turn. Nothing happens until the caller asks for the next event, so it can commit each one first.

    It can be closed or cancelled at any point and leaves nothing running. `ProviderFailed` is passed on.
    """
    detector = LoopDetector()
    for number in range(1, max_iterations + 1):
        step = StepCollector()
        async with aclosing(provider.stream(prompt)) as chunks:
            async for chunk in chunks:
                if delta := step.add(chunk):
                    yield delta
        done = step.result()
        yield done  # The caller commits the tool calls before any of them runs.
        if not done.tool_calls:
            yield Done(text=done.text if done.text.strip() else _NO_ANSWER, steps=number)
            return
        outcomes: list[ToolOutcome] = []
        ran = run_tools(done.tool_calls, toolbox=toolbox, context=context, approve=approve, verify=verify)
        async with aclosing(ran) as events:
            async for event in events:
                yield event
                if isinstance(event, ToolFinished):
                    outcomes.append(event.outcome)
                    detector.add(event.call, event.outcome)
        if detector.repeated_tools:
            tools = " and ".join(f"`{tool}`" for tool in detector.repeated_tools)
            yield Done(text=_LOOPING.format(tools=tools), steps=number)
            return
        answer = AssistantMessage(text=done.text, tool_calls=done.tool_calls, thoughts=done.thoughts)
        results = ToolMessage(outcomes=tuple(outcomes))
        messages = (*prompt.messages, answer, results, *await new_messages())
        prompt = replace(prompt, messages=messages, tools=toolbox.offered(prompt.tools))
    yield Done(text=_TOO_MANY_STEPS.format(steps=max_iterations), steps=max_iterations)


async def run_tools(
    calls: Sequence[ToolCall],
    *,
    toolbox: Toolbox,
    context: ToolContext,
    approve: Approve,
    verify: Verify = no_change,
) -> AsyncGenerator[ToolStarted | ToolFinished | PlanUpdated, None]:
    """Run the tool calls of one step. `ToolFinished` events come in the order of the calls, also for denied calls.

    All approvals are asked for first: while a turn waits for a person, no tool of the step has run.
    """
    toolbox = toolbox.snapshot()  # An MCP server may connect while a person is asked.
    denied: dict[str, ToolOutcome] = {}
    approved: set[str] = set()
    for call in calls:
        if not toolbox.needs_approval(call):
            continue
        if (fault := toolbox.find_fault(call)) is not None:
            denied[call.id] = fault  # It cannot run, so no person is asked.
        elif (reason := await approve(call)) is not None:
            denied[call.id] = ToolOutcome(id=call.id, output=reason, is_error=True)
        else:
            approved.add(call.id)
    for batch in toolbox.batches(calls):
        # All calls of a batch are reported as started before the first one runs.
        allowed = [call for call in batch if call.id not in denied]
        for call in allowed:
            yield ToolStarted(call=call)
        async with AsyncExitStack() as stack:
            for call in allowed:
                if call.id in approved:
                    # As late as possible: an earlier call of the step may have changed a file.
                    reason = await stack.enter_async_context(verify(call))
                    if reason is not None:
                        denied[call.id] = ToolOutcome(id=call.id, output=reason, is_error=True)
                elif toolbox.may_change_files(call):
                    await stack.enter_async_context(context.locks[context.workspace].shared())
            for call in allowed:  # Right before they run: what people may do can have changed during the step.
                refusal = toolbox.find_refusal(call, is_approved=call.id in approved)
                if refusal is not None and call.id not in denied:
                    denied[call.id] = refusal
            unchanged = [call for call in allowed if call.id not in denied]
            ran = {outcome.id: outcome for outcome in await toolbox.run_all(unchanged, context)}
        for call in batch:
            outcome = denied.get(call.id) or ran[call.id]
            yield ToolFinished(call=call, outcome=outcome)
            if call.name == plan.spec.name and not outcome.is_error:
                yield PlanUpdated(steps=msgspec.convert(call.input["steps"], tuple[PlannedStep, ...]))


class StepCollector:
    """Collects the chunks of one step. Model output is untrusted: it is limited in size and made valid Unicode."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._calls: dict[str, ToolCall] = {}
        self._usage: TokenUsage | None = None
        self._thoughts: list[Thought] = []
        self._text_left = MAX_TEXT_CHARS
        self._call_bytes_left = MAX_TOOL_CALL_BYTES

    def add(self, chunk: Chunk) -> TextDelta | None:
        """Add a chunk. Return its text, if any, to be shown at once. Raises `ProviderFailed` if a limit is exceeded."""
        if isinstance(chunk, TextDelta):
            self._text_left -= len(chunk.text)
            if self._text_left < 0:
                raise ProviderFailed(_TEXT_TOO_LONG)
            text = clean(chunk.text)
            self._texts.append(text)
            return TextDelta(text=text) if text else None
        if isinstance(chunk, TokenUsage):
            self._usage = chunk
        elif isinstance(chunk, Thought):
            self._thoughts.append(chunk)
        else:
            # Results are matched to calls by id, so a missing or repeated id is replaced.
            call_id = clean(chunk.id) if chunk.id and chunk.id not in self._calls else new_call_id()
            try:
                arguments = {clean(key): _clean_json(value) for key, value in chunk.input.items()}
                call = replace(chunk, id=call_id, name=clean(chunk.name), input=arguments)
                self._call_bytes_left -= len(msgspec.json.encode(call))
            except RecursionError as too_deep:
                raise ProviderFailed(TOOL_CALL_TOO_LONG) from too_deep
            if self._call_bytes_left < 0:
                raise ProviderFailed(TOOL_CALL_TOO_LONG)
            self._calls[call_id] = call
        return None

    def result(self) -> StepDone:
        return StepDone(
            text="".join(self._texts),
            tool_calls=tuple(self._calls.values()),
            usage=self._usage,
            thoughts=tuple(self._thoughts),
        )


def _clean_json(value: Json) -> Json:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_clean_json(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): _clean_json(item) for key, item in value.items()}
    return value


class LoopDetector:
    """Detects a model that repeats the same tool call with the same result, or a cycle of up to three calls."""

    _ROUNDS = 3
    _MAX_CYCLE = 3

    def __init__(self) -> None:
        self.repeated_tools: tuple[str, ...] = ()
        """The tools of the cycle. Once set it stays set, because the other calls of the step still have to run."""
        self._seen: deque[tuple[str, dict[str, Json], str]] = deque(maxlen=self._ROUNDS * self._MAX_CYCLE)

    def add(self, call: ToolCall, outcome: ToolOutcome) -> None:
        self._seen.append((call.name, call.input, outcome.output))
        seen = list(self._seen)
        for length in range(1, self._MAX_CYCLE + 1):
            last = seen[-self._ROUNDS * length :]
            is_cycle = len(last) == self._ROUNDS * length and last == last[-length:] * self._ROUNDS
            if is_cycle and not self.repeated_tools:
                self.repeated_tools = tuple(dict.fromkeys(name for name, _, _ in last))

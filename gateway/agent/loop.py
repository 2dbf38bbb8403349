"""The agent loop: model, tools, model, ... until there is an answer."""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from gateway.agent.protocol import (
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
)
from gateway.agent.toolbox.chat import plan
from gateway.agent.tools import Toolbox, ToolContext
from gateway.conversation import AssistantMessage, Json, Message, Thought, ToolCall, ToolMessage, ToolOutcome
from gateway.errors import ProviderFailed
from gateway.text import clean

_ROUNDS = 3
_LONGEST_CIRCLE = 3

_Seen = tuple[str, dict[str, Json], str]


class LoopDetector:
    """Looks for the same few calls, with the same results, over and over: one call, or up to three in turns."""

    def __init__(self) -> None:
        self.stuck_on: tuple[str, ...] = ()
        """The tools of the circle. They stay set, for the step's other calls still have to run."""
        self._seen: deque[_Seen] = deque(maxlen=_ROUNDS * _LONGEST_CIRCLE)

    def note(self, call: ToolCall, outcome: ToolOutcome) -> None:
        self._seen.append((call.name, call.input, outcome.output))
        if not self.stuck_on:
            self.stuck_on = _circle(list(self._seen))


def _circle(seen: list[_Seen]) -> tuple[str, ...]:
    """Name the tools of the shortest circle that the last calls went round often enough, each once."""
    for length in range(1, _LONGEST_CIRCLE + 1):
        last = seen[-_ROUNDS * length :]
        if len(last) == _ROUNDS * length and last == last[-length:] * _ROUNDS:
            return tuple(dict.fromkeys(name for name, _, _ in last))
    return ()


MAX_TEXT_CHARS = 1024 * 1024
MAX_TOOL_CALL_BYTES = 256 * 1024
"""For all tool calls of a step together, as JSON."""

_TOO_MUCH_TEXT = "The model wrote more than one answer can hold, and was stopped. Please ask for less at once."
TOOL_CALL_TOO_LONG = "The model wanted to give its tools more than they can take, and was stopped. Please ask for less."


def new_call_id() -> str:
    return f"call_{uuid4().hex}"


class StepCollector:
    """Takes chunks as they come. What a model writes is input like any other: it is made valid Unicode here.

    It is bounded here, too: more than that is `ProviderFailed`.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._calls: dict[str, ToolCall] = {}
        self._usage: TokenUsage | None = None
        self._thoughts: list[Thought] = []
        self._text_left = MAX_TEXT_CHARS
        self._call_left = MAX_TOOL_CALL_BYTES

    def add(self, chunk: Chunk) -> TextDelta | None:
        """Add a chunk; return what of it can be shown at once."""
        if isinstance(chunk, TokenUsage):
            self._usage = chunk
            return None
        if isinstance(chunk, Thought):
            self._thoughts.append(chunk)
            return None
        if isinstance(chunk, ToolCall):
            self._add_call(chunk)
            return None
        self._text_left -= len(chunk.text)
        if self._text_left < 0:
            raise ProviderFailed(_TOO_MUCH_TEXT)
        text = clean(chunk.text)
        self._texts.append(text)
        return TextDelta(text=text) if text else None

    def result(self) -> StepDone:
        return StepDone(
            text="".join(self._texts),
            tool_calls=tuple(self._calls.values()),
            usage=self._usage,
            thoughts=tuple(self._thoughts),
        )

    def _add_call(self, call: ToolCall) -> None:
        """Give a call without an id, or with one that is taken, its own: results are matched by id."""
        is_usable = call.id and call.id not in self._calls
        call_id = clean(call.id) if is_usable else new_call_id()
        try:
            arguments = {clean(key): _clean_json(value) for key, value in call.input.items()}
            whole = replace(call, id=call_id, name=clean(call.name), input=arguments)
            self._call_left -= len(msgspec.json.encode(whole))
        except RecursionError as deep:
            raise ProviderFailed(TOOL_CALL_TOO_LONG) from deep
        if self._call_left < 0:
            raise ProviderFailed(TOOL_CALL_TOO_LONG)
        self._calls[call_id] = whole


def _clean_json(value: Json) -> Json:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_clean_json(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): _clean_json(item) for key, item in value.items()}
    return value


Approve = Callable[[ToolCall], Awaitable[str | None]]
"""Asks a person whether a call may run, for as long as that takes; returns why not, as a sentence for the model."""


async def deny_approval(call: ToolCall) -> str | None:
    """Let nothing run that somebody would have to agree to."""
    return f"The tool {call.name} needs a person's consent, and there is nobody to ask here. It was not run."


async def run_tools(
    calls: Sequence[ToolCall], *, toolbox: Toolbox, context: ToolContext, permit: Approve
) -> AsyncGenerator[ToolStarted | ToolFinished | PlanUpdated, None]:
    """Run the calls of one step; what finishes comes in their order, also what was not allowed to start.

    Everything is asked before anything runs: while a turn waits for a person, nothing of its step has been done.
    """
    toolbox = toolbox.snapshot()
    refused: dict[str, ToolOutcome] = {}
    for call in calls:
        if toolbox.needs_approval(call) and (why := await permit(call)) is not None:
            refused[call.id] = ToolOutcome(id=call.id, output=why, is_error=True)
    for batch in toolbox.batches(calls):
        allowed = [call for call in batch if call.id not in refused]
        for call in allowed:
            yield ToolStarted(call=call)
        ran = {outcome.id: outcome for outcome in await toolbox.run_all(allowed, context)}
        for call in batch:
            outcome = refused.get(call.id) or ran[call.id]
            yield ToolFinished(call=call, outcome=outcome)
            if call.name == plan.spec.name and not outcome.is_error:
                yield PlanUpdated(steps=msgspec.convert(call.input["steps"], tuple[PlannedStep, ...]))


CollectMessages = Callable[[], Awaitable[Sequence[Message]]]
"""Returns what people have said since the turn began, and what the next step therefore has to know; often nothing."""

_NOTHING_SAID = "The model ended without an answer. Please ask again, or put it differently."
_GOING_IN_CIRCLES = (
    "I stopped: I was going in circles, calling {tools} again and again in the same way and with the same results. "
    "Please say more about what you need."
)
_TOO_MANY_STEPS = "I stopped after {steps} steps without coming to an end. Say “go on” if I should continue."


async def no_new_messages() -> Sequence[Message]:
    return ()


async def run_agent(
    prompt: Prompt,
    *,
    provider: Provider,
    toolbox: Toolbox,
    context: ToolContext,
    max_iterations: int,
    permit: Approve = deny_approval,
    listen: CollectMessages = no_new_messages,
) -> AsyncGenerator[Event, None]:
    """Run one turn. Nothing happens between an event and the caller's asking for the next, so it can commit each.

    Closing or cancelling it at any point leaves nothing running. `ProviderFailed` passes through.
    """
    repeats = LoopDetector()
    for number in range(1, max_iterations + 1):
        step = StepCollector()
        async with aclosing(provider.stream(prompt)) as chunks:
            async for chunk in chunks:
                if delta := step.add(chunk):
                    yield delta
        done = step.result()
        yield done
        if not done.tool_calls:
            yield Done(text=done.text if done.text.strip() else _NOTHING_SAID, steps=number)
            return
        outcomes: list[ToolOutcome] = []
        async with aclosing(run_tools(done.tool_calls, toolbox=toolbox, context=context, permit=permit)) as uses:
            async for event in uses:
                yield event
                if isinstance(event, ToolFinished):
                    outcomes.append(event.outcome)
                    repeats.note(event.call, event.outcome)
        if repeats.stuck_on:
            tools = " and ".join(f"`{tool}`" for tool in repeats.stuck_on)
            yield Done(text=_GOING_IN_CIRCLES.format(tools=tools), steps=number)
            return
        said = AssistantMessage(text=done.text, tool_calls=done.tool_calls, thoughts=done.thoughts)
        found = ToolMessage(outcomes=tuple(outcomes))
        prompt = replace(prompt, messages=(*prompt.messages, said, found, *await listen()))
    yield Done(text=_TOO_MANY_STEPS.format(steps=max_iterations), steps=max_iterations)

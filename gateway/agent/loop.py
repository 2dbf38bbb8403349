"""The agent loop: model, tools, model, ... until there is an answer."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from gateway.agent.events import Done, Event, ToolFinished
from gateway.agent.provider import Prompt, Provider
from gateway.agent.repeats import Repeats
from gateway.agent.step import Step
from gateway.agent.tools import Toolbox, ToolContext
from gateway.agent.using import Permit, nobody_to_ask, use
from gateway.conversation import AssistantMessage, Message, ToolMessage, ToolOutcome

__all__ = ["Listen", "converse"]

Listen = Callable[[], Awaitable[Sequence[Message]]]
"""Returns what people have said since the turn began, and what the next step therefore has to know; often nothing."""

_NOTHING_SAID = "The model ended without an answer. Please ask again, or put it differently."
_GOING_IN_CIRCLES = (
    "I stopped: I was going in circles, calling {tools} again and again in the same way and with the same results. "
    "Please say more about what you need."
)
_TOO_MANY_STEPS = "I stopped after {steps} steps without coming to an end. Say “go on” if I should continue."


async def nothing_heard() -> Sequence[Message]:
    return ()


async def converse(
    prompt: Prompt,
    *,
    provider: Provider,
    toolbox: Toolbox,
    context: ToolContext,
    max_iterations: int,
    permit: Permit = nobody_to_ask,
    listen: Listen = nothing_heard,
) -> AsyncGenerator[Event, None]:
    """Run one turn. Nothing happens between an event and the caller's asking for the next, so it can commit each.

    Closing or cancelling it at any point leaves nothing running. `ProviderFailed` passes through.
    """
    repeats = Repeats()
    for number in range(1, max_iterations + 1):
        step = Step()
        async with aclosing(provider.stream(prompt)) as chunks:
            async for chunk in chunks:
                if delta := step.take(chunk):
                    yield delta
        done = step.done()
        yield done
        if not done.tool_calls:
            yield Done(text=done.text if done.text.strip() else _NOTHING_SAID, steps=number)
            return
        outcomes: list[ToolOutcome] = []
        async with aclosing(use(done.tool_calls, toolbox=toolbox, context=context, permit=permit)) as uses:
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

"""The agent loop: model, tools, model, ... until there is an answer."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from gateway.agent.events import Done, Event, ToolFinished, ToolStarted
from gateway.agent.provider import Prompt, Provider
from gateway.agent.repeats import Repeats
from gateway.agent.step import Step
from gateway.agent.tools import Toolbox, ToolContext
from gateway.dialogue import AssistantMessage, ToolMessage, ToolOutcome

__all__ = ["converse"]

_NOTHING_SAID = "The model ended without an answer. Please ask again, or put it differently."
_GOING_IN_CIRCLES = (
    "I stopped: I was going in circles, calling {tools} again and again in the same way and with the same results. "
    "Please say more about what you need."
)
_TOO_MANY_STEPS = "I stopped after {steps} steps without coming to an end. Say “go on” if I should continue."


async def converse(
    prompt: Prompt, *, provider: Provider, toolbox: Toolbox, context: ToolContext, max_iterations: int
) -> AsyncGenerator[Event, None]:
    """Run one turn. Nothing happens between an event and the caller's asking for the next, so it can commit each.

    Closing or cancelling it at any point leaves nothing running. `ProviderFailed` passes through.
    """
    messages = list(prompt.messages)
    repeats = Repeats()
    for number in range(1, max_iterations + 1):
        step = Step()
        async with aclosing(provider.stream(replace(prompt, messages=tuple(messages)))) as chunks:
            async for chunk in chunks:
                if delta := step.take(chunk):
                    yield delta
        done = step.done()
        yield done
        if not done.tool_calls:
            yield Done(text=done.text if done.text.strip() else _NOTHING_SAID, steps=number)
            return
        outcomes: list[ToolOutcome] = []
        for batch in toolbox.batches(done.tool_calls):
            for call in batch:
                yield ToolStarted(call=call)
            for call, outcome in zip(batch, await toolbox.run_all(batch, context), strict=True):
                yield ToolFinished(call=call, outcome=outcome)
                outcomes.append(outcome)
                repeats.note(call, outcome)
        if repeats.stuck_on:
            tools = " and ".join(f"`{tool}`" for tool in repeats.stuck_on)
            yield Done(text=_GOING_IN_CIRCLES.format(tools=tools), steps=number)
            return
        messages.append(AssistantMessage(text=done.text, tool_calls=done.tool_calls, thoughts=done.thoughts))
        messages.append(ToolMessage(outcomes=tuple(outcomes)))
    yield Done(text=_TOO_MANY_STEPS.format(steps=max_iterations), steps=max_iterations)

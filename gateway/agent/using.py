"""Using the tools that a step has called: a person is asked where one has to be, then all run as they may."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import msgspec

from gateway.agent.events import PlanMade, PlanStep, ToolFinished, ToolStarted
from gateway.agent.toolbox.planning import plan
from gateway.agent.tools import Toolbox, ToolContext
from gateway.conversation import ToolCall, ToolOutcome

__all__ = ["Permit", "nobody_to_ask", "use"]

Permit = Callable[[ToolCall], Awaitable[str | None]]
"""Asks a person whether a call may run, for as long as that takes; returns why not, as a sentence for the model."""


async def nobody_to_ask(call: ToolCall) -> str | None:
    """Let nothing run that somebody would have to agree to."""
    return f"The tool {call.name} needs a person's consent, and there is nobody to ask here. It was not run."


async def use(
    calls: Sequence[ToolCall], *, toolbox: Toolbox, context: ToolContext, permit: Permit
) -> AsyncGenerator[ToolStarted | ToolFinished | PlanMade, None]:
    """Run the calls of one step; what finishes comes in their order, also what was not allowed to start.

    Everything is asked before anything runs: while a turn waits for a person, nothing of its step has been done.
    """
    toolbox = toolbox.at_hand()
    refused: dict[str, ToolOutcome] = {}
    for call in calls:
        if toolbox.asks(call) and (why := await permit(call)) is not None:
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
                yield PlanMade(steps=msgspec.convert(call.input["steps"], tuple[PlanStep, ...]))

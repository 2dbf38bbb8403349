"""What the agent loop tells its caller, in the order in which it happens."""

from msgspec import Struct

from gateway.agent.provider import TextDelta, Usage
from gateway.conversation import Thought, ToolCall, ToolOutcome

__all__ = ["Done", "Event", "PlanMade", "PlanStep", "StepDone", "TextDelta", "ToolFinished", "ToolStarted"]


class StepDone(Struct, frozen=True, kw_only=True):
    """The model has finished a step. Its tools run only after the caller has come back for the next event."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    thoughts: tuple[Thought, ...] = ()


class ToolStarted(Struct, frozen=True, kw_only=True):
    call: ToolCall


class ToolFinished(Struct, frozen=True, kw_only=True):
    call: ToolCall
    outcome: ToolOutcome


class PlanStep(Struct, frozen=True, kw_only=True):
    """`status` is `pending`, `in_progress` or `completed`."""

    content: str
    status: str = "pending"


class PlanMade(Struct, frozen=True, kw_only=True):
    """The model has told its plan, or how far it is with it: all steps, each time."""

    steps: tuple[PlanStep, ...]


class Done(Struct, frozen=True, kw_only=True):
    """The last event: the answer, never empty. It is the last step's text, unless the loop had to end by itself."""

    text: str
    steps: int


Event = TextDelta | StepDone | ToolStarted | ToolFinished | PlanMade | Done

"""What the agent loop tells its caller, in the order in which it happens."""

from dataclasses import dataclass

from gateway.agent.provider import TextDelta, Usage
from gateway.dialogue import Thought, ToolCall, ToolOutcome

__all__ = ["Done", "Event", "PlanMade", "PlanStep", "StepDone", "TextDelta", "ToolFinished", "ToolStarted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """The model has finished a step. Its tools run only after the caller has come back for the next event."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    thoughts: tuple[Thought, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    call: ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished:
    call: ToolCall
    outcome: ToolOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """`status` is `pending`, `in_progress` or `completed`."""

    content: str
    status: str = "pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade:
    """The model has told its plan, or how far it is with it: all steps, each time."""

    steps: tuple[PlanStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The last event: the answer, never empty. It is the last step's text, unless the loop had to end by itself."""

    text: str
    steps: int


Event = TextDelta | StepDone | ToolStarted | ToolFinished | PlanMade | Done

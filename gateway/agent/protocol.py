"""What a language model is to the loop; each SDK is adapted to this in a module of its own."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from msgspec import Struct

from gateway.conversation import Json, Message, Thought, ToolCall, ToolOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model sees it. `schema` is the JSON Schema of its arguments, an object without references."""

    name: str
    description: str
    schema: dict[str, Json]


class Prompt(Struct, frozen=True, kw_only=True):
    """All that a model is given. `model` is None for the agent's own; otherwise a name as `Agent.about` takes it."""

    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    model: str | None = None


class TextDelta(Struct, frozen=True, kw_only=True):
    """The next piece of the text that is being written."""

    text: str


class TokenUsage(Struct, frozen=True, kw_only=True):
    """Tokens of one step, as the provider counted them: each 0 where it did not say. The last chunk of a step."""

    input_tokens: int
    """All that the model read, whether it came from a cache or not."""
    output_tokens: int
    """All that the model wrote, thoughts too."""
    cache_read_tokens: int = 0
    """Of `input_tokens`, those that came from the provider's cache."""
    cache_write_tokens: int = 0
    """Of `input_tokens`, those that were put into it."""
    model: str = ""
    """Which model has answered, as `provider/model`: a fallback, perhaps."""


Chunk = TextDelta | ToolCall | Thought | TokenUsage
"""A tool call comes whole: half of one, from a stream that was cut, must never reach the loop."""


class Provider(Protocol):
    def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Run one step of the model, as an async generator that can be closed at any time.

        Raises only `gateway.errors.ProviderFailed` and its kinds, whose text the person may read.
        """


@runtime_checkable
class Closable(Protocol):
    """A provider that holds connections."""

    async def warm_up(self) -> None:
        """Do beforehand what takes long the first time: importing its SDK, off the event loop."""

    async def aclose(self) -> None:
        """Close the connections, each as soon as no step runs on it. It can be used again, and then opens anew."""


class StepDone(Struct, frozen=True, kw_only=True):
    """The model has finished a step. Its tools run only after the caller has come back for the next event."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage | None = None
    thoughts: tuple[Thought, ...] = ()


class ToolStarted(Struct, frozen=True, kw_only=True):
    call: ToolCall


class ToolFinished(Struct, frozen=True, kw_only=True):
    call: ToolCall
    outcome: ToolOutcome


class PlannedStep(Struct, frozen=True, kw_only=True):
    """`status` is `pending`, `in_progress` or `completed`."""

    content: str
    status: str = "pending"


class PlanUpdated(Struct, frozen=True, kw_only=True):
    """The model has told its plan, or how far it is with it: all steps, each time."""

    steps: tuple[PlannedStep, ...]


class Done(Struct, frozen=True, kw_only=True):
    """The last event: the answer, never empty. It is the last step's text, unless the loop had to end by itself."""

    text: str
    steps: int


Event = TextDelta | StepDone | ToolStarted | ToolFinished | PlanUpdated | Done

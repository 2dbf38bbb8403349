"""The protocol between the agent loop and model providers: prompts in, chunks out, and the events of the loop."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable
from uuid import uuid4

from msgspec import Struct

from gateway.conversation import Json, Message, Thought, ToolCall, ToolOutcome

MAX_TOOL_CALL_BYTES = 256 * 1024
"""For all tool calls of a step together, as JSON."""
TOOL_CALL_TOO_LONG = "The model sent too much data to its tools, so I stopped it. Please ask for less."

CUT_OFF = "The connection to `{model}` broke off before the answer was finished. Please ask again."


def new_call_id() -> str:
    return f"call_{uuid4().hex}"


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """A tool as the model sees it. `schema` is the JSON Schema of its arguments, an object without references."""

    name: str
    description: str
    schema: dict[str, Json]

    @cached_property
    def text(self) -> str:
        """All of it as one text, about as long as in a request. Every request is measured, so it is made once."""
        return f"{self.name} {self.description} {self.schema}"


class Prompt(Struct, frozen=True, kw_only=True):
    """Everything that a model is given. `model` is None for the agent's own model."""

    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    model: str | None = None
    """A model of the agent's provider, or `provider/model`."""
    excluded: frozenset[str] = frozenset()
    """The full names of models that must not be used as fallbacks."""


class TextDelta(Struct, frozen=True, kw_only=True):
    """The next piece of the streamed text."""

    text: str


class TokenUsage(Struct, frozen=True, kw_only=True):
    """Tokens of one step as counted by the provider, 0 where it did not report them. The last chunk of a step."""

    input_tokens: int
    """All tokens that the model read, cached or not."""
    output_tokens: int
    """All tokens that the model wrote, including thoughts."""
    cache_read_tokens: int = 0
    """The part of `input_tokens` that came from the provider's cache."""
    cache_write_tokens: int = 0
    """The part of `input_tokens` that was written to the provider's cache."""
    model: str = ""
    """The model that answered, as `provider/model`. It may be a fallback."""


Chunk = TextDelta | ToolCall | Thought | TokenUsage
"""A tool call is always complete: half a call of an interrupted stream must never reach the loop."""


class Provider(Protocol):
    def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Run one step of the model. The generator can be closed at any time.

        Raises only `gateway.errors.ProviderFailed` and its subclasses, whose text the person may read.
        """


@runtime_checkable
class Closable(Protocol):
    """A provider that holds connections."""

    async def warm_up(self) -> None:
        """Read the CA certificates, off the event loop, so that the first step does not wait for that."""

    async def aclose(self) -> None:
        """Close the connections, each as soon as no step uses it. A later step opens new ones."""


class StepDone(Struct, frozen=True, kw_only=True):
    """The model has finished a step. Its tools run only after the caller asks for the next event."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage | None = None
    thoughts: tuple[Thought, ...] = ()


class ToolStarted(Struct, frozen=True, kw_only=True):
    call: ToolCall


class ToolFinished(Struct, frozen=True, kw_only=True):
    call: ToolCall
    outcome: ToolOutcome


class ToolReported(Struct, frozen=True, kw_only=True):
    """A coding agent has begun a tool call of its own. `text` is what it has written since the call before."""

    text: str
    call: ToolCall
    model: str = ""


class ToolChanged(Struct, frozen=True, kw_only=True):
    """A coding agent has completed the title or the arguments of a call that it had reported."""

    call: ToolCall


class PlannedStep(Struct, frozen=True, kw_only=True):
    """`status` is `pending`, `in_progress` or `completed`."""

    content: str
    status: str = "pending"


class PlanUpdated(Struct, frozen=True, kw_only=True):
    """The model has made or updated its plan. It always has all steps."""

    steps: tuple[PlannedStep, ...]


class Done(Struct, frozen=True, kw_only=True):
    """The last event: the answer, never empty. It is the text of the last step, or says why the loop stopped."""

    text: str
    steps: int


Event = TextDelta | StepDone | ToolReported | ToolChanged | ToolStarted | ToolFinished | PlanUpdated | Done
"""The loop around a model yields no `ToolReported` and no `ToolChanged`; a coding agent yields no `StepDone`."""

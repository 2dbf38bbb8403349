"""What a language model is to the loop; each SDK is adapted to this in a module of its own."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.dialogue import Json, Message, ToolCall

__all__ = ["Chunk", "Prompt", "Provider", "TextDelta", "ToolSpec", "Usage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model sees it. `schema` is the JSON Schema of its arguments, an object without references."""

    name: str
    description: str
    schema: dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """All that a model is given. `model` is None where the provider has only one."""

    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """The next piece of the text that is being written."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    input_tokens: int
    output_tokens: int


Chunk = TextDelta | ToolCall | Usage
"""A tool call comes whole: half of one, from a stream that was cut, must never reach the loop."""


class Provider(Protocol):
    def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Run one step of the model, as an async generator that can be closed at any time.

        Raises only `gateway.errors.ProviderFailed`, whose text the person may read.
        """

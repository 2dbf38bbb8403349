"""A conversation as the model sees it, free of any provider's wire format and of how transcripts are stored."""

from typing import ClassVar

from msgspec import Struct

__all__ = [
    "AssistantMessage",
    "Json",
    "Message",
    "Picture",
    "Thought",
    "ToolCall",
    "ToolMessage",
    "ToolOutcome",
    "UserMessage",
]

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class ToolCall(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    input: dict[str, Json]
    fault: str = ""
    """Why it cannot be run, for the model: its arguments were no JSON object."""


class ToolOutcome(Struct, frozen=True, kw_only=True):
    """What a tool call gave; a failure is an outcome too."""

    id: str
    output: str
    is_error: bool = False


class Picture(Struct, frozen=True, kw_only=True):
    """An image that came with a message. `file` is where it is kept; without `data` it is named but not shown."""

    name: str
    file: str
    media_type: str
    data: bytes = b""

    def __repr__(self) -> str:
        """Leave out what may be megabytes."""
        return f"Picture(name={self.name!r}, file={self.file!r}, media_type={self.media_type!r})"


class Thought(Struct, frozen=True, kw_only=True):
    """What a model thought before it called tools, in its provider's own shape. It is for that model only.

    Some models must be shown their thoughts again until the turn is over. They are kept in no transcript.
    """

    model: str
    shape: dict[str, Json]


class UserMessage(Struct, frozen=True, kw_only=True):
    """What a person said. The text names every picture, so a model that does not see them knows of them."""

    text: str
    sender: str = ""
    sender_id: str = ""
    is_ours: bool = False
    """Said by the gateway itself, like a summary. What people say can never look like it."""
    pictures: tuple[Picture, ...] = ()


class AssistantMessage(Struct, frozen=True, kw_only=True):
    """What the model said in one step; with tool calls, a `ToolMessage` with their outcomes follows."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    thoughts: tuple[Thought, ...] = ()
    pictures: ClassVar[tuple[Picture, ...]] = ()


class ToolMessage(Struct, frozen=True, kw_only=True):
    """One outcome for each call of the assistant message before it, in the order of the calls."""

    outcomes: tuple[ToolOutcome, ...]
    pictures: ClassVar[tuple[Picture, ...]] = ()


Message = UserMessage | AssistantMessage | ToolMessage

"""A conversation as the model sees it, free of any provider's wire format and of how transcripts are stored."""

from dataclasses import dataclass

__all__ = ["AssistantMessage", "Json", "Message", "ToolCall", "ToolMessage", "ToolOutcome", "UserMessage"]

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    id: str
    name: str
    input: dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """What a tool call gave; a failure is an outcome too."""

    id: str
    output: str
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    text: str
    sender: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage:
    """What the model said in one step; with tool calls, a `ToolMessage` with their outcomes follows."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMessage:
    """One outcome for each call of the assistant message before it, in the order of the calls."""

    outcomes: tuple[ToolOutcome, ...]


Message = UserMessage | AssistantMessage | ToolMessage

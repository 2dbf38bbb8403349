"""A conversation as the model sees it, independent of any provider's format and of the transcript files."""

from typing import ClassVar

from msgspec import Struct

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class ToolCall(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    input: dict[str, Json]
    fault: str = ""
    """Why it cannot run, as a sentence for the model: its arguments were not a JSON object."""
    title: str = ""
    """A few words of a coding agent about the call. Then `name` is only its kind, such as `edit` or `execute`."""


class FileDiff(Struct, frozen=True, kw_only=True):
    """The change of one file as a unified diff. It may be shortened."""

    path: str
    diff: str


class ToolOutcome(Struct, frozen=True, kw_only=True):
    """The result of a tool call, or its failure."""

    id: str
    output: str
    is_error: bool = False
    diffs: tuple[FileDiff, ...] = ()
    """Files that a coding agent has changed with the call."""


class Picture(Struct, frozen=True, kw_only=True):
    """An image that came with a message. `file` is its place in the file store; without `data` it is only named."""

    name: str
    file: str
    media_type: str
    data: bytes = b""

    def __repr__(self) -> str:
        """Leave out `data`, which may have megabytes."""
        return f"Picture(name={self.name!r}, file={self.file!r}, media_type={self.media_type!r})"


class Thought(Struct, frozen=True, kw_only=True):
    """A model's thoughts before it called tools, in its provider's own format. Only that model may read them.

    Some models need their thoughts back until the turn is over. Thoughts are never written to a transcript.
    """

    model: str
    shape: dict[str, Json]


class UserMessage(Struct, frozen=True, kw_only=True):
    """A person's message. The text names every picture, so that models without vision know about them."""

    text: str
    sender: str = ""
    sender_id: str = ""
    schedule: str = ""
    """The schedule that has sent it. No person has written it: the sender has made the schedule."""
    is_ours: bool = False
    """Written by the gateway, such as a summary. People cannot write a message that looks like it."""
    pictures: tuple[Picture, ...] = ()


class AssistantMessage(Struct, frozen=True, kw_only=True):
    """The model's text and tool calls of one step. After tool calls follows a `ToolMessage` with their outcomes."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    thoughts: tuple[Thought, ...] = ()
    pictures: ClassVar[tuple[Picture, ...]] = ()


class ToolMessage(Struct, frozen=True, kw_only=True):
    """The outcomes of the calls in the assistant message before it, in the same order."""

    outcomes: tuple[ToolOutcome, ...]
    pictures: ClassVar[tuple[Picture, ...]] = ()


Message = UserMessage | AssistantMessage | ToolMessage

"""The frames of a chat socket: one JSON object each, told apart by `type`. Pure: bytes in, values out, and back."""

import json
from datetime import datetime
from typing import Annotated

import msgspec

from gateway.contract import AttachmentKind, Button, CommandInfo, SessionInfo, Verdict
from gateway.text import clean

__all__ = [
    "Ack",
    "AskCommands",
    "AskHistory",
    "AskSessions",
    "BadFrame",
    "Commands",
    "Draft",
    "Echo",
    "Failure",
    "FileLink",
    "Frame",
    "Hello",
    "History",
    "HistoryLine",
    "Message",
    "Say",
    "ServerFrame",
    "Sessions",
    "Upload",
    "encode",
    "parse",
]

MAX_FRAME_SIZE = 256 * 1024
"""In bytes, as it comes over the wire: room for the longest message that the core takes, in any script."""
MAX_HISTORY = 500
MAX_FILES = 100


class BadFrame(Exception):
    """One sentence for the client: what is wrong with its frame. `id` is the client's own, where it was readable."""

    def __init__(self, sentence: str, *, id: str | None = None) -> None:  # noqa: A002 - the field's name on the wire.
        super().__init__(sentence)
        self.id = id


_Id = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,64}\Z")]


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was uploaded before, as the answer to the upload describes it."""

    ref: Annotated[str, msgspec.Meta(max_length=200)]
    name: Annotated[str, msgspec.Meta(max_length=200)]
    kind: AttachmentKind = AttachmentKind.FILE
    media_type: Annotated[str, msgspec.Meta(max_length=200)] = ""
    size: Annotated[int, msgspec.Meta(ge=0)] = 0


class Say(msgspec.Struct, frozen=True, kw_only=True, tag="message", tag_field="type"):
    """Something to tell the agent. The client may repeat it with the same `id`, up to 64 visible ASCII characters."""

    id: _Id
    text: str
    files: Annotated[tuple[Upload, ...], msgspec.Meta(max_length=MAX_FILES)] = ()


class AskSessions(msgspec.Struct, frozen=True, kw_only=True, tag="sessions", tag_field="type"):
    pass


class AskHistory(msgspec.Struct, frozen=True, kw_only=True, tag="history", tag_field="type"):
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_HISTORY)] = 100


class AskCommands(msgspec.Struct, frozen=True, kw_only=True, tag="commands", tag_field="type"):
    pass


Frame = Say | AskSessions | AskHistory | AskCommands


class _Named(msgspec.Struct):
    """As much of a bad frame as is needed to say which one it was."""

    id: _Id


_frames = msgspec.json.Decoder(Frame)
_named = msgspec.json.Decoder(_Named)


def parse(data: str | bytes) -> Frame:
    """Read one frame of a client, or raise `BadFrame` and nothing else."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(raw) > MAX_FRAME_SIZE:
        raise BadFrame(f"This is too long: a frame may have {MAX_FRAME_SIZE // 1024} KiB.", id=_id_of(raw))
    try:
        frame = _read(raw)
    except msgspec.ValidationError as problem:
        raise BadFrame(f"This frame makes no sense here: {clean(str(problem))}.", id=_id_of(raw)) from problem
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:
        raise BadFrame("This is not valid JSON.") from problem
    return _checked(frame) if isinstance(frame, Say) else frame


def _read(raw: bytes) -> Frame:
    """Read a frame; half a pair of surrogates, which browsers escape, is no reason to refuse it."""
    try:
        frame: Frame = _frames.decode(raw)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        frame = _frames.decode(clean(json.dumps(json.loads(raw), ensure_ascii=False)))
    return frame


def _checked(frame: Say) -> Say:
    text = clean(frame.text)
    if not text.strip() and not frame.files:
        raise BadFrame("There is nothing in this message.", id=frame.id)
    return Say(id=frame.id, text=text, files=frame.files)


def _id_of(raw: bytes) -> str | None:
    try:
        return _named.decode(raw).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello", tag_field="type"):
    """Always the first frame: who the server takes the client for, and how many bytes a client's frame may have."""

    name: str
    max_frame_bytes: int = MAX_FRAME_SIZE


class Ack(msgspec.Struct, frozen=True, kw_only=True, tag="ack", tag_field="type"):
    """The message `id` has been taken (or refused for good) and must not be sent again."""

    id: str
    verdict: Verdict
    at: datetime


class Echo(msgspec.Struct, frozen=True, kw_only=True, tag="echo", tag_field="type"):
    """What the same person has just said through another connection."""

    id: str
    text: str
    at: datetime


class Draft(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="draft", tag_field="type"):
    """All of an answer so far; the next draft, and at last the message, with the same `key` take its place."""

    key: str
    text: str
    session: int | None = None
    reply_to: str | None = None
    html: str | None = None


class FileLink(msgspec.Struct, frozen=True, kw_only=True):
    """A file to download: `url` is a path on this server."""

    name: str
    size: int
    url: str


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="message", tag_field="type"):
    """A whole answer, `kind` reply (Markdown) or notice (plain text), to the client's message `reply_to`.

    The same `key` twice is the same message.
    """

    key: str
    kind: str
    text: str
    at: datetime
    session: int | None = None
    reply_to: str | None = None
    html: str | None = None
    buttons: tuple[Button, ...] = ()
    is_failure: bool = False
    """It tells why there is no answer."""
    is_question: bool = False
    """One of its buttons, or yes or no, is the answer that the agent waits for."""
    restored: int = 0
    """How many turns the session had when the daemon started, in the first answer since."""
    file: FileLink | None = None


class Sessions(msgspec.Struct, frozen=True, kw_only=True, tag="sessions", tag_field="type"):
    sessions: list[SessionInfo]


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: str
    text: str
    at: datetime
    html: str | None = None
    file: FileLink | None = None


class History(msgspec.Struct, frozen=True, kw_only=True, tag="history", tag_field="type"):
    """The last lines of the active session, whose number is `session`; oldest first."""

    session: int | None
    lines: list[HistoryLine]


class Commands(msgspec.Struct, frozen=True, kw_only=True, tag="commands", tag_field="type"):
    commands: list[CommandInfo]


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="error", tag_field="type"):
    """One sentence for a person. With `can_retry`, the same frame may succeed a little later."""

    text: str
    id: str | None = None
    can_retry: bool = False


ServerFrame = Hello | Ack | Echo | Draft | Message | Sessions | History | Commands | Failure

_encoder = msgspec.json.Encoder()


def encode(frame: ServerFrame) -> bytes:
    return _encoder.encode(frame)

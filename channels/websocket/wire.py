"""Frame types and codec of a chat WebSocket. Each frame is one JSON object; its `type` says which one."""

import json
from datetime import datetime
from typing import Annotated
from urllib.parse import quote

import msgspec

from gateway.contract import AttachmentKind, Button, CommandInfo, Enclosure, Outbound, SessionInfo, Verdict
from gateway.text import clean
from gateway.text.plain import in_bytes

MAX_FRAME_SIZE = 256 * 1024
"""In bytes on the wire. The longest message that the core accepts fits in any script."""
MAX_HISTORY = 500
MAX_FILES = 100

_Id = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,64}\Z")]


class UploadedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the client uploaded before, as the response to the upload describes it."""

    ref: Annotated[str, msgspec.Meta(max_length=200)]
    name: Annotated[str, msgspec.Meta(max_length=200)]
    kind: AttachmentKind = AttachmentKind.FILE
    media_type: Annotated[str, msgspec.Meta(max_length=200)] = ""
    size: Annotated[int, msgspec.Meta(ge=0)] = 0


class ClientMessage(msgspec.Struct, frozen=True, kw_only=True, tag="message", tag_field="type"):
    """A message to the agent. The client may resend it with the same `id` (up to 64 visible ASCII characters)."""

    id: _Id
    text: str
    files: Annotated[tuple[UploadedFile, ...], msgspec.Meta(max_length=MAX_FILES)] = ()


class SessionsRequest(msgspec.Struct, frozen=True, kw_only=True, tag="sessions", tag_field="type"):
    pass


class HistoryRequest(msgspec.Struct, frozen=True, kw_only=True, tag="history", tag_field="type"):
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_HISTORY)] = 100


class CommandsRequest(msgspec.Struct, frozen=True, kw_only=True, tag="commands", tag_field="type"):
    pass


ClientFrame = ClientMessage | SessionsRequest | HistoryRequest | CommandsRequest


class HelloFrame(msgspec.Struct, frozen=True, kw_only=True, tag="hello", tag_field="type"):
    """The first frame of each connection: the name of the client's user, and the limits for the client's messages.

    With `needs_setup`, no model is connected yet, and the user may connect one with `gatehouse setup`. `transcribes`:
    voice messages are turned into text.
    """

    name: str
    max_frame_bytes: int = MAX_FRAME_SIZE
    max_text_chars: int | None = None
    needs_setup: bool = False
    transcribes: bool = False


class AckFrame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ack", tag_field="type"):
    """The core has decided on the message `id`; the client must not send it again.

    If the client has sent it before (verdict duplicate), the other fields say what became of it, and its answers
    follow once more, with their old keys and with `reply_to`.
    """

    id: str
    verdict: Verdict
    at: datetime
    turn: str | None = None
    """The keys of its answers are the turn, or start with the turn and a dot."""
    session: int | None = None
    is_finished: bool = False
    """It was answered or dropped. Otherwise the answer is still to come."""


class EchoFrame(msgspec.Struct, frozen=True, kw_only=True, tag="echo", tag_field="type"):
    """A message that the same user sent through another connection."""

    id: str
    text: str
    at: datetime


class DraftFrame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="draft", tag_field="type"):
    """The whole answer so far. The next draft, and finally the message, with the same `key` replaces it."""

    key: str
    text: str
    session: int | None = None
    reply_to: str | None = None
    html: str | None = None


class FileLink(msgspec.Struct, frozen=True, kw_only=True):
    """A file to download or to show; `url` is a path on this server."""

    name: str
    size: int
    url: str
    media_type: str = ""


class MessageFrame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="message", tag_field="type"):
    """A complete message of `kind` reply (Markdown) or notice (plain text); it answers the client's `reply_to`.

    Two frames with the same `key` are the same message.
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
    """The text explains why there is no answer."""
    details: str = ""
    """The cause of a failure in technical words."""
    is_question: bool = False
    """The agent waits for one of the buttons, or for yes or no."""
    restored: int = 0
    """In the first answer after a restart: how many turns the session had when the daemon started."""
    file: FileLink | None = None
    unanswered: tuple[str, ...] = ()
    """The ids of client messages that were dropped without an answer."""


class SessionsFrame(msgspec.Struct, frozen=True, kw_only=True, tag="sessions", tag_field="type"):
    sessions: list[SessionInfo]


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of the user with its `id`, or of the agent with its `turn`, with which the keys of its frames start."""

    role: str
    text: str
    at: datetime
    id: str | None = None
    turn: str | None = None
    html: str | None = None
    file: FileLink | None = None
    is_failure: bool = False
    """The text explains why there is no answer."""
    details: str = ""


class HistoryFrame(msgspec.Struct, frozen=True, kw_only=True, tag="history", tag_field="type"):
    """The last lines of the active session, oldest first; `session` is its number."""

    session: int | None
    lines: list[HistoryLine]


class CommandsFrame(msgspec.Struct, frozen=True, kw_only=True, tag="commands", tag_field="type"):
    commands: list[CommandInfo]


class ErrorFrame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="error", tag_field="type"):
    """One sentence for a person. With `can_retry`, the same frame may succeed a little later."""

    text: str
    id: str | None = None
    can_retry: bool = False


ServerFrame = (
    HelloFrame
    | AckFrame
    | EchoFrame
    | DraftFrame
    | MessageFrame
    | SessionsFrame
    | HistoryFrame
    | CommandsFrame
    | ErrorFrame
)


class BadFrame(Exception):
    """Says in one sentence what is wrong with a client's frame. `id` is the message's id, if it was readable."""

    def __init__(self, sentence: str, *, id: str | None = None) -> None:  # noqa: A002 - the field's name on the wire.
        super().__init__(sentence)
        self.id = id


class _FrameId(msgspec.Struct):
    """The part of a bad frame that is needed to name it in the error."""

    id: _Id


encode = msgspec.json.Encoder().encode
_client_frames: msgspec.json.Decoder[ClientFrame] = msgspec.json.Decoder(ClientFrame)
_server_frames: msgspec.json.Decoder[ServerFrame] = msgspec.json.Decoder(ServerFrame)
_frame_ids = msgspec.json.Decoder(_FrameId)


def parse(data: str | bytes) -> ClientFrame:
    """Read one frame of a client; raises only `BadFrame`."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(raw) > MAX_FRAME_SIZE:
        raise BadFrame(f"This message is too long. The limit is {in_bytes(MAX_FRAME_SIZE)}.", id=_id_of(raw))
    try:
        try:
            frame = _client_frames.decode(raw)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            # A browser escapes half of a surrogate pair as "\ud83d". msgspec refuses that; `json` reads it.
            frame = _client_frames.decode(clean(json.dumps(json.loads(raw), ensure_ascii=False)))
    except msgspec.ValidationError as problem:
        raise BadFrame(f"This frame is not valid: {clean(str(problem))}.", id=_id_of(raw)) from problem
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:
        raise BadFrame("This is not valid JSON.") from problem
    if isinstance(frame, ClientMessage):
        frame = msgspec.structs.replace(frame, text=clean(frame.text))
        if not frame.text.strip() and not frame.files:
            raise BadFrame("This message is empty.", id=frame.id)
    return frame


def _id_of(raw: bytes) -> str | None:
    try:
        return _frame_ids.decode(raw).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def parse_server_frame(data: str | bytes) -> ServerFrame | None:
    """Read one frame of the gateway; returns None for frames of another version, which a client skips."""
    try:
        return _server_frames.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def message_frame(message: Outbound, *, key: str, at: datetime, html: str | None = None) -> MessageFrame:
    """Return a message of the core as a frame. A file becomes a link, and its text names it."""
    file = message.file
    return MessageFrame(
        key=key,
        kind=message.kind,
        text=message.text if file is None else f"[file: {file.name}]",
        at=at,
        session=message.session,
        reply_to=message.reply_to,
        html=html,
        buttons=message.buttons,
        is_failure=message.is_failure,
        details=message.details,
        unanswered=message.unanswered,
        is_question=message.is_question,
        restored=message.restored,
        file=None if file is None else link_to(file),
    )


def link_to(file: Enclosure) -> FileLink:
    """Return the link under which the client can download a file of the agent."""
    url = f"/files/{quote(file.ref)}?name={quote(file.name)}"
    return FileLink(name=file.name, size=file.size, url=url, media_type=file.media_type)

"""Entries of a transcript as messages of the API. Pure."""

import re
from collections.abc import AsyncIterable, AsyncIterator, Callable
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

from msgspec.structs import replace

from gateway.api.types import (
    ApiMessage,
    ApprovalContent,
    AttachmentInfo,
    Content,
    FileContent,
    FileDiffInfo,
    PlanContent,
    PlanStepInfo,
    Role,
    TextContent,
    TokenCount,
    ToolContent,
)
from gateway.sessions import Entry, TurnOutcome, entries

LOOK_BACK = 500
"""Entries before a position that a mapper has to see, so that it knows the tool calls whose results come after it."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class MessageMapper:
    """Turns the entries of one session, fed in their order, into messages.

    A message may change later: a tool call gets its result, a question its decision, and the last text of a turn that
    was stopped becomes `partial`. Then `feed` returns it again, with the same id and a higher `seq`.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._namespace = uuid5(NAMESPACE_URL, f"gatehouse:session:{session_id}")
        # The messages of the current turn that may change.
        self._calls: dict[str, ApiMessage] = {}
        self._questions: dict[str, ApiMessage] = {}
        self._text: ApiMessage | None = None
        self._step: entries.Assistant | None = None
        """A step without a text. Its first tool call shows what it has cost."""

    def feed(self, entry: Entry) -> ApiMessage | None:  # noqa: PLR0911 - one line for each kind of entry.
        """Return the message that an entry adds or changes, if any."""
        match entry:
            case entries.User():
                attached = tuple(
                    AttachmentInfo(
                        name=file.name,
                        kind=file.kind,
                        media_type=file.media_type,
                        size=file.size,
                        url=self._file_url(file.ref, file.name),
                    )
                    for file in entry.attachments
                )
                text = TextContent(text=entry.content, partial=False, attachments=attached)
                sender = entry.sender_name or entry.sender
                message = self._message(entry, "user", text)
                return replace(message, id=self.user_id(entry), sender=sender, schedule=entry.schedule)
            case entries.Assistant() if entry.content:
                self._step = None
                text = TextContent(text=entry.content, partial=False)
                self._text = _with_usage(self._message(entry, "agent", text), entry)
                return self._text
            case entries.Assistant():
                self._step = entry
                return None
            case entries.System():
                text = TextContent(text=entry.content, partial=False, is_failure=entry.is_failure)
                return replace(self._message(entry, "system", text), in_reply_to=entry.about or None)
            case entries.Clear():
                text = TextContent(text="The agent has forgotten the conversation up to here.", partial=False)
                return self._message(entry, "system", text)
            case entries.Undo():
                return self._message(entry, "system", TextContent(text="The last turn was undone.", partial=False))
            case entries.ToolUse():
                tool = ToolContent(tool=entry.name, args=entry.input, result=None, title=entry.title or None)
                call = _with_usage(self._message(entry, "system", tool), self._step)
                self._calls[entry.tool_use_id], self._step = call, None
                return call
            case entries.ToolResult() if (started := self._calls.get(entry.tool_use_id)) is not None:
                result = replace(
                    started.content,
                    result=entry.output,
                    is_error=entry.is_error,
                    seconds=round((entry.ts - started.timestamp).total_seconds(), 3),
                    diffs=[FileDiffInfo(path=each.path, diff=each.diff) for each in entry.diffs],
                )
                return replace(started, content=result, seq=entry.seq)
            case entries.ToolUpdate() if (started := self._calls.get(entry.tool_use_id)) is not None:
                changed = replace(started.content, tool=entry.name, args=entry.input, title=entry.title or None)
                call = self._calls[entry.tool_use_id] = replace(started, content=changed, seq=entry.seq)
                return call
            case entries.Plan():
                steps = [PlanStepInfo(content=step.content, status=step.status) for step in entry.steps]
                return self._message(entry, "system", PlanContent(steps=steps))
            case entries.Approval(approval_id=name) if (asked := self._questions.get(name)) is not None:
                return replace(asked, content=replace(asked.content, decision=entry.decision), seq=entry.seq)
            case entries.Approval() if entry.decision is None:
                content = ApprovalContent(approval_id=entry.approval_id, question=entry.question, decision=None)
                question = self._questions[entry.approval_id] = self._message(entry, "system", content)
                return question
            case entries.SentFile():
                file = AttachmentInfo(
                    name=entry.name,
                    kind="file",
                    media_type=entry.media_type,
                    size=entry.size,
                    url=self._file_url(entry.ref, entry.name),
                )
                return self._message(entry, "agent", FileContent(file=file))
            case entries.TurnEnd():
                text_of_turn = self._text if self._text is not None and self._text.turn == entry.turn else None
                self._text = None
                self._calls.clear()
                self._questions.clear()
                if text_of_turn is None or entry.outcome is TurnOutcome.ANSWERED:
                    return None
                return replace(text_of_turn, content=replace(text_of_turn.content, partial=True), seq=entry.seq)
            case _:
                return None

    def _message(self, entry: Entry, role: Role, content: Content) -> ApiMessage:
        return ApiMessage(
            id=str(uuid5(self._namespace, str(entry.seq))),
            session_id=self._session_id,
            role=role,
            content=content,
            timestamp=entry.ts,
            seq=entry.seq,
            turn=entry.turn,
        )

    def user_id(self, entry: entries.User) -> str:
        """Return the id that the program got for its prompt. Messages of chats have none, so it is derived."""
        if entry.event_id is not None and is_uuid(entry.event_id):
            return entry.event_id
        return str(uuid5(self._namespace, str(entry.seq)))

    def _file_url(self, ref: str, name: str) -> str:
        """Return the path of a file in the API, or an empty string if it was not stored."""
        stored = ref.rpartition("/")[2]
        return f"/api/sessions/{self._session_id}/files/{quote(stored)}?name={quote(name)}" if stored else ""


def is_message(session_id: str, entry: Entry, message_id: str) -> bool:
    """Return whether an entry is the message of a user with this id, which the API or the chat client gave it."""
    if not isinstance(entry, entries.User):
        return False
    return message_id in {entry.event_id, MessageMapper(session_id).user_id(entry)}


def _with_usage(message: ApiMessage, step: entries.Assistant | None) -> ApiMessage:
    if step is None:
        return message
    used = step.usage
    return replace(
        message,
        model=step.model,
        usage=None
        if used is None
        else TokenCount(
            input_tokens=used.input_tokens,
            cached_tokens=used.cached_tokens,
            output_tokens=used.output_tokens,
            cost_micros=used.cost_micros,
        ),
    )


async def all_messages(
    session_id: str, source: AsyncIterable[Entry], is_new: Callable[[Entry], bool] = lambda _: True
) -> AsyncIterator[ApiMessage]:
    """Yield each message that a new entry has added or changed, once and in order, with its last content.

    Holds the messages of one turn in memory: nothing changes them after its end.
    """
    mapper, of_turn = MessageMapper(session_id), dict[str, ApiMessage]()
    async for entry in source:
        changed = mapper.feed(entry)
        if changed is not None and is_new(entry):
            of_turn[changed.id] = changed
        if isinstance(entry, entries.TurnEnd):
            for message in of_turn.values():
                yield message
            of_turn.clear()
    for message in of_turn.values():
        yield message


def is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None

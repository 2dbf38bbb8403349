"""The state of one running turn, as plain data, and the transcript entry of a message that it answers."""

from collections.abc import Mapping, Sequence
from time import monotonic

from msgspec import Struct, field
from msgspec.structs import replace

from gateway.agent.senders import sanitize_name
from gateway.contract import Enclosure, Inbound, Outbound, OutboundKind
from gateway.conversation import ToolCall
from gateway.files.outgoing import OutgoingFiles
from gateway.files.to_text import unavailable
from gateway.job import Job
from gateway.outbound.draft_stream import join_paragraphs
from gateway.sessions import Entry, TurnOutcome, entries
from gateway.turns.agents import ConfiguredAgent
from gateway.turns.usage import TurnUsage

STOPPED_HERE = "stopped by a command in the same chat"
"""The reason of a `/stop` from the chat that the turn answers."""


class TurnState(Struct, kw_only=True):
    jobs: list[Job]
    """The messages that the turn answers, oldest first. More than one only in the busy modes `collect` and `steer`."""
    opening: list[Entry] = field(default_factory=list)
    """Entries that the turn starts with in place of its first message. `/retry` sets them."""
    has_begun: bool = False
    """Whether the transcript has the messages of the turn."""
    started: float = field(default_factory=monotonic)
    agent: ConfiguredAgent | None = None
    """None until the turn has its slot."""
    usage: TurnUsage | None = None
    outcome: TurnOutcome | None = None
    """None while the turn runs."""
    note: str = ""
    """A sentence that says why the turn ended without an answer. It is not part of the conversation."""
    cause: entries.FailureCause | None = None
    """Why it has failed, for programs."""
    details: str = ""
    """The cause in technical words. Only set if everyone who gets the answer is an owner."""
    ends_session: str = ""
    """Why the session is in error after the turn: its coding agent has failed, or no model will answer a program."""
    written: list[str] = field(default_factory=list)
    """The texts of finished steps, which are in the transcript."""
    streaming: list[str] = field(default_factory=list)
    """The deltas of the step that is being written. They are joined only when they are read."""
    first_token_ms: float | None = None
    tools: int = 0
    """How many tool calls have finished."""
    calls: dict[str, ToolCall] = field(default_factory=dict)
    """Tool calls of the current step that have no result yet, by id."""
    approvals: Mapping[str, entries.Approval] = field(default_factory=dict)
    """Questions about those calls from before a restart, with the decision if there was one, by the call's id."""
    named_files: dict[str, dict[str, str] | None] = field(default_factory=dict)
    """The files that a person has seen named in an approved call, with their digests, by the call's id."""
    is_waiting: bool = False
    """Whether the spool says that the turn waits for an approval. Then no tool of the current step has run."""
    asked: str = ""
    """The call of the last question. Of a coding agent, only this one has not run while the turn waits."""
    restored: int = 0
    """How many turns the session had when the daemon started, for its first answer since then."""
    received: dict[str, tuple[entries.Attached, ...]] = field(default_factory=dict)
    """The files of its messages, by the turn of each message."""
    outgoing: OutgoingFiles | None = None
    """Takes the files that tools send."""
    sent: list[Enclosure] = field(default_factory=list)
    """Files that go with the answer and are in the transcript."""
    is_stop_told: bool = False
    """Whether the answer to `/stop` says in its chat that the turn was stopped. Then the turn does not repeat it."""
    following: Job | None = None
    """The next message of the session, if its turn begins in the commit that ends this one."""

    @property
    def elapsed_ms(self) -> float:
        return round((monotonic() - self.started) * 1000, 1)

    def stop(self, reason: str) -> None:
        """Set that the turn was stopped. `reason` is that of the cancellation, and may be empty."""
        self.is_stop_told = reason == STOPPED_HERE
        self.end(TurnOutcome.STOPPED, "Stopped." if self.is_stop_told or not reason else reason)

    @property
    def has_text(self) -> bool:
        """Whether it has written a part of its answer."""
        return any(text.strip() for text in (*self.written, *self.streaming))

    def end(
        self, outcome: TurnOutcome, reason: str, *, cause: entries.FailureCause | None = None, details: str = ""
    ) -> None:
        """Set how the turn ends without an answer. The text so far stays, and `reason` follows it."""
        self.outcome = outcome
        self.note = reason
        self.cause = cause
        self.details = details

    def opening_entries(self) -> list[Entry]:
        """Return the entries that the turn starts with in the transcript."""
        messages = [user_entry(job.inbound, self.received.get(job.turn)) for job in self.jobs]
        return [*self.opening, *messages[1:]] if self.opening else [*messages]

    def replies(self, text: str, jobs: Sequence[Job]) -> list[Outbound]:
        """Return `text` as a reply to the newest of `jobs` in each chat, in the order in which the chats wrote.

        One session may span several chats (`dm_scope` is `main`). Each chat that asked gets the answer.
        """
        newest = {job.inbound.answer_address or job.inbound.address: job for job in jobs}
        return [
            replace(
                job.inbound.reply(text, session=job.number, kind=OutboundKind.REPLY),
                is_failure=self.outcome is TurnOutcome.FAILED,
                details=self.details,
                restored=self.restored,
            )
            for job in newest.values()
        ]


def user_entry(
    inbound: Inbound, files: tuple[entries.Attached, ...] | None = None, *, turn: str | None = None
) -> entries.User:
    """Return a message as a transcript entry. Without `files`, its attachments are noted as not downloaded."""
    if files is None:
        files = tuple(unavailable(file, "it was not downloaded") for file in inbound.attachments)
    stripped = inbound.text.strip()
    # In a chat, `//text` sends `/text` to the agent.
    text = stripped[1:] if stripped.startswith("//") and not inbound.is_prompt else inbound.text
    if (quote := inbound.quotes) is not None:
        # The author is in quotes since people may call themselves "you".
        author = "you" if quote.is_ours else f'"{sanitize_name(quote.author) or "someone"}"'
        lines = "\n".join(f"> {line}" for line in quote.text.splitlines())
        # After the message's own text: people recognise a session by its first words.
        text = join_paragraphs([text, f"[in reply to {author}]\n{lines}"])
    return entries.User(
        content=text,
        sender=inbound.sender.id,
        sender_name=inbound.sender.name,
        schedule="" if inbound.scheduled is None else f"schedule {inbound.scheduled.number}",
        event_id=inbound.event_id,
        attachments=files,
        turn=turn,
    )

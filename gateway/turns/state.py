"""What has become of a turn so far: what was asked, what has been said, and the answer that it adds up to."""

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace

from gateway.agent.senders import sanitize_name
from gateway.contract import Enclosure, Inbound, Outbound, OutboundKind, Quote
from gateway.conversation import ToolCall
from gateway.files.outgoing import OutgoingFiles
from gateway.files.to_text import unavailable
from gateway.job import Job
from gateway.sessions import Entry, TurnOutcome, entries
from gateway.spool import AddUsage
from gateway.turns.context import Prepared

__all__ = ["TurnState", "user_entry"]


class TurnState(Struct, kw_only=True):
    """What has become of a turn so far."""

    jobs: list[Job]
    """The messages it answers, oldest first; one, but for busy modes `collect` and `steer`."""
    asked: list[Entry]
    """What it begins with in the transcript, if not with the first of its messages."""
    started: float = field(default_factory=monotonic)
    written: list[str] = field(default_factory=list)
    """Steps that are in the transcript already."""
    pending: list[str] = field(default_factory=list)
    streaming: str = ""
    outcome: TurnOutcome = TurnOutcome.ANSWERED
    has_begun: bool = False
    prepared: Prepared | None = None
    """Who answers, and who pays; None until that is known."""
    tools: int = 0
    calls: dict[str, ToolCall] = field(default_factory=dict)
    """Those of the step at hand that have no result yet, by id."""
    approvals: Mapping[str, entries.Approval] = field(default_factory=dict)
    """What was asked about those before a restart, and decided if it was, by the id of the call."""
    is_waiting: bool = False
    """Whether its row says that it waits for an approval: then nothing of the step at hand has been done."""
    restored: int = 0
    """Turns that the session had when the daemon started, in its first answer since."""
    first_token_ms: float | None = None
    received: dict[str, tuple[entries.Attached, ...]] = field(default_factory=dict)
    """The files that its messages came with, by the turn of each message."""
    sent: list[Enclosure] = field(default_factory=list)
    """The files that go with the answer, and are in the transcript already."""
    outgoing: OutgoingFiles | None = None
    """What takes the files that its tools send."""
    following: Job | None = None
    """The message that is answered next, and whose turn began when this one ended."""

    @classmethod
    def of(cls, job: Job, begins_with: Sequence[Entry] = ()) -> Self:
        """Start with `job`, and with what it asks, if that is not its own text."""
        has_begun = job.has_begun or job.is_resumed
        return cls(jobs=[job, *job.collected], asked=list(begins_with), has_begun=has_begun)

    @property
    def opening(self) -> list[Entry]:
        """What it begins with in the transcript: also a `/retry` may answer messages that came after it."""
        first, *others = self.jobs
        return [*(self.asked or [self.message_of(first)]), *map(self.message_of, others)]

    @property
    def model(self) -> str:
        """Name the model that has answered: a fallback, perhaps."""
        return (self.prepared.bill.model or self.prepared.agent.model or "") if self.prepared else ""

    @property
    def sees(self) -> bool:
        """Whether the model that answers is shown images."""
        return self.prepared is not None and self.prepared.agent.info.sees_images

    @property
    def usage(self) -> entries.Usage | None:
        """What was used of models and is in no entry yet."""
        return self.prepared.bill.noted if self.prepared else None

    @property
    def due(self) -> list[AddUsage]:
        """The same, to be committed with the next entries."""
        return self.prepared.bill.due if self.prepared else []

    def settled(self, due: Sequence[AddUsage]) -> None:
        if self.prepared:
            self.prepared.bill.settled(due)

    @property
    def text(self) -> str:
        return _paragraphs(*self.written, *self.pending, self.streaming)

    @property
    def unwritten(self) -> str:
        return _paragraphs(*self.pending, self.streaming)

    @property
    def channel(self) -> str:
        return self.jobs[0].inbound.address.channel

    @property
    def age_ms(self) -> float:
        return round((monotonic() - self.started) * 1000, 1)

    def heard(self, delta: str) -> None:
        self.streaming += delta
        if self.first_token_ms is None:
            self.first_token_ms = self.age_ms

    def ended(self, outcome: TurnOutcome, sentence: str) -> None:
        """End other than by an answer: what was said so far stays, and the sentence tells how it ended."""
        self.outcome = outcome
        self.pending += [self.streaming, f"*{sentence}*"]
        self.streaming = ""

    def begin_following(self) -> None:
        """Take in that the turn that follows is in the transcript already."""
        if self.following is not None:
            self.following = replace(self.following, has_begun=True)

    def message_of(self, job: Job) -> entries.User:
        """Return a message as the transcript has it."""
        return user_entry(job.inbound, self.received.get(job.turn))

    def reply(self, text: str) -> Outbound:
        """Return `text` as an answer in the chat where the turn began."""
        return self.replies(text)[0]

    def replies(self, text: str) -> list[Outbound]:
        """Return `text` as an answer to the newest message of each chat, in the order in which they came in.

        One conversation may go over several chats (`dm_scope` is `main`), and each that has asked is answered.
        """
        newest = {job.inbound.address: job for job in self.jobs}
        return [self._reply_to(job, text) for job in newest.values()]

    def _reply_to(self, job: Job, text: str) -> Outbound:
        return Outbound(
            address=job.inbound.address,
            text=text,
            kind=OutboundKind.REPLY,
            reply_to=job.inbound.message_id,
            session=job.number,
            is_failure=self.outcome is TurnOutcome.FAILED,
            restored=self.restored,
        )


def user_entry(
    inbound: Inbound, files: tuple[entries.Attached, ...] | None = None, *, turn: str | None = None
) -> entries.User:
    """Return a message as the transcript has it; a turn that was stopped early has not fetched its files."""
    if files is None:
        files = tuple(unavailable(file, "it was not fetched") for file in inbound.attachments)
    return entries.User(
        content=_paragraphs(spoken(inbound.text), _quoted(inbound.quotes)) if inbound.quotes else spoken(inbound.text),
        sender=inbound.sender.id,
        sender_name=inbound.sender.name,
        event_id=inbound.event_id,
        attachments=files,
        turn=turn,
    )


def spoken(text: str) -> str:
    """Return the text that the agent gets: `//text` is the way to send it `/text`."""
    stripped = text.strip()
    return stripped[1:] if stripped.startswith("//") else text


def _quoted(quote: Quote) -> str:
    """Tell what a message answers to, behind its own words: those are what it is known by."""
    lines = "\n".join(f"> {line}" for line in quote.text.splitlines())
    author = sanitize_name(quote.author) or "somebody"
    who = "you" if quote.is_ours else f'"{author}"'  # Anybody may call himself "you".
    return f"[in reply to {who}]\n{lines}"


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text.strip())

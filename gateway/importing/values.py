"""What every importer makes of the files of another gateway: conversations, memory and settings."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from gateway.contract import PeerKind
from gateway.conversation import Json

TERMINAL = "terminal"
SCHEDULES_DIFFER = "schedules have other times and permissions here; see docs/schedules.md"
SKILLS_CAN_BE_COPIED = "skills can be copied to a folder of `skills.folders`; see docs/skills.md"


class UnknownFormat(Exception):
    """The data is not what it should be. The text is the reason, as the end of a sentence."""


def unreadable(error: OSError, path: Path) -> UnknownFormat:
    return UnknownFormat(f"{error.filename or path} can't be read: {error.strerror or error}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedText:
    is_user: bool
    content: str
    at: datetime
    sender: str = ""
    sender_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedToolUse:
    id: str
    name: str
    input: dict[str, Json]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedToolResult:
    id: str
    output: str
    at: datetime
    is_error: bool = False


ImportedStep = ImportedText | ImportedToolUse | ImportedToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The chat of a conversation. `kind` is None if nothing says whether it is a direct chat or a group.

    A terminal without a `peer` is that of the user of this machine. `sender` is the member of a group that the
    conversation is with, if the other gateway keeps its members apart.
    """

    channel: str
    peer: str
    kind: PeerKind | None = None
    account: str = "default"
    thread: str | None = None
    sender: str = ""


@dataclass(slots=True, kw_only=True)
class Conversation:
    """A session of another gateway. Its id is made of `maker`, `key` and `id`. `left_out` counts parts, by kind."""

    maker: str
    key: str
    id: str
    created: datetime
    place: Place | None = None
    """Where it took place; None: nothing says so, or it belongs to the `scope`."""
    scope: str = ""
    """The scope that it names itself, as our own exports do."""
    agent: str = ""
    """The agent that it was with, if the other gateway has several."""
    title: str = ""
    name: str = ""
    """What people call its chat: the name of the person or of the group, if that is known."""
    source: str = ""
    """The file that it is from, for people."""
    steps: list[ImportedStep] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def updated(self) -> datetime:
        return max((step.at for step in self.steps), default=self.created)

    @property
    def messages(self) -> int:
        return sum(isinstance(step, ImportedText) for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that is not imported, and why. `is_damaged`: it should have been."""

    what: str
    why: str
    is_damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFile:
    """What a gateway has noted for later conversations. Without a `place`, it was for all of its chats."""

    name: str
    statements: tuple[str, ...]
    noted: str
    """The day of the last change, as in 2026-11-19."""
    place: Place | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedChannel:
    """A channel of the other gateway. Its token is a secret."""

    name: str
    account: str = "default"
    token: str = field(default="", repr=False)
    allow: tuple[str, ...] = ()
    group_allow: tuple[str, ...] = ()
    dm_policy: str = ""
    group_policy: str = ""
    require_mention: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedModel:
    """The model of the main agent, and how its provider is reached. `kind` is that of our providers."""

    provider: str
    kind: str
    model: str
    base_url: str = ""
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSettings:
    """What of the settings of another gateway has an equivalent here, and sentences about what has none."""

    channels: tuple[ProposedChannel, ...] = ()
    model: ProposedModel | None = None
    dm_scope: str = ""
    identity_links: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    timezone: str = ""
    prompt_file: Path | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignGateway:
    """The data of another gateway. `conversations` reads them again at each call, one at a time."""

    maker: str
    folder: Path
    conversations: Callable[[], Iterator[Conversation | LeftOut]]
    memory: tuple[MemoryFile, ...] = ()
    settings: ForeignSettings = ForeignSettings()
    left_out: tuple[LeftOut, ...] = ()

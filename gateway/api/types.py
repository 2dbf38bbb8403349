"""The types of the session API. They validate requests, encode responses, and are described by the OpenAPI document.

Names are camelCase on the wire. Times are ISO 8601 in UTC.
"""

from datetime import date, datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from config import ApprovalRight
from gateway.sessions import SessionStatus
from gateway.sessions.state import UtcTime

Uuid = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
Title = Annotated[
    str, Meta(min_length=1, max_length=200, description="Shown in lists of sessions.", examples=["Nightly build"])
]
Role = Literal["user", "agent", "system"]
_STATUS = "|".join(SessionStatus)
_STATUSES = rf"^(({_STATUS})(,({_STATUS}))*)?$"
MAX_SEQ = 10**15
"""More entries than any session has."""


class Request(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The body or the query of a request. Unknown fields are refused."""


class Response(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of a response. Fields with the value of their default may be absent."""


class NewSessionBody(Request, frozen=True, kw_only=True):
    repo_id: Annotated[Name, Meta(description="The repository that the session is bound to, for good.")] | None = None
    agent: Annotated[Name, Meta(description="The agent that answers. Default: `main`.")] | None = None
    title: Title | None = None


class SessionChanges(Request, frozen=True, kw_only=True):
    title: Title


class UndoBody(Request, frozen=True, kw_only=True):
    message: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=200,
            description="The id of a message of a user, or the one that its chat client gave it.",
        ),
    ]


class PromptFile(Request, frozen=True, kw_only=True):
    """A file for a prompt: its content in base64, or the `ref` of a file that was uploaded with `POST /api/files`."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    ref: Annotated[str, Meta(min_length=1, max_length=300)] | None = None
    data: str | None = None
    media_type: Annotated[str, Meta(max_length=200)] = ""


class PromptBody(Request, frozen=True, kw_only=True):
    text: Annotated[
        str,
        Meta(
            description="The text goes to the agent as it is. Chat commands have no effect.",
            examples=["Which tests failed last night?"],
        ),
    ]
    attachments: Annotated[tuple[PromptFile, ...], Meta(max_length=100)] = ()


class DecisionBody(Request, frozen=True, kw_only=True):
    decision: Literal["approve", "deny"]


class ListQuery(Request, frozen=True, kw_only=True):
    repo_id: Annotated[str, Meta(description="Sessions of these repositories, separated by commas.")] = ""
    status: Annotated[
        str, Meta(pattern=_STATUSES, description="`active`, `completed`, `cancelled`, `error`; separated by commas.")
    ] = ""
    channel: Annotated[str, Meta(description="Sessions of these channels, separated by commas.")] = ""
    agent: Annotated[str, Meta(description="Sessions of these agents, separated by commas.")] = ""
    q: Annotated[str, Meta(max_length=200, description="Words that the title contains.")] = ""
    chat: Annotated[str, Meta(max_length=200, description="A part of the key, such as the id of a person.")] = ""
    archived: Annotated[bool, Meta(description="List the sessions in the archive instead.")] = False
    limit: Annotated[int, Meta(ge=1, le=200)] = 20
    offset: Annotated[int, Meta(ge=0, le=10_000_000)] = 0


class MessagesQuery(Request, frozen=True, kw_only=True):
    since: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_SEQ)] | Annotated[datetime, Meta(tz=True)],
        Meta(description="Only messages after this `seq`, or after this time, like `2026-11-18T09:30:00Z`."),
    ] = 0


class EventsQuery(Request, frozen=True, kw_only=True):
    since: (
        Annotated[int, Meta(ge=0, le=MAX_SEQ, description="Also events after this `seq`. Default: only new ones.")]
        | None
    ) = None


class SearchQuery(Request, frozen=True, kw_only=True):
    q: Annotated[str, Meta(min_length=1, max_length=200, description="Words that a message contains, all of them.")]
    channel: str = ""
    agent: str = ""
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class ExportQuery(Request, frozen=True, kw_only=True):
    format: Literal["jsonl", "markdown", "json"] = "jsonl"


class DeleteQuery(Request, frozen=True, kw_only=True):
    permanent: Annotated[bool, Meta(description="Delete the session and all its text, instead of cancelling it.")] = (
        False
    )


class FileQuery(Request, frozen=True, kw_only=True):
    name: Annotated[str, Meta(max_length=200)] = ""


class UsageQuery(Request, frozen=True, kw_only=True):
    day: Annotated[date, Meta(description="A day in UTC. Default: today.")] | None = None


class UsageHistoryQuery(Request, frozen=True, kw_only=True):
    since: Annotated[date, Meta(description="The first day, in UTC. Default: 29 days before the last one.")] | None = (
        None
    )
    until: Annotated[date, Meta(description="The last day, in UTC. Default: today.")] | None = None


class StatusInfo(Response, frozen=True, kw_only=True):
    """Who has set the status, and why."""

    by: str = ""
    reason: str = ""


class TokenCount(Response, frozen=True, kw_only=True):
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_micros: int
    """Millionths of the currency in which the prices are configured."""


class SessionSummary(Response, frozen=True, kw_only=True):
    """A session without its messages."""

    id: str
    repo_id: str | None
    status: SessionStatus
    created_at: UtcTime
    updated_at: UtcTime
    agent: str
    channel: str
    title: str
    key: str
    number: int
    message_count: int
    is_running: bool
    """Whether a turn is running or prompts are waiting."""
    usage: TokenCount
    status_info: StatusInfo | None = None
    model: str | None = None


class SessionList(Response, frozen=True, kw_only=True):
    sessions: list[SessionSummary]
    total: int
    limit: int
    offset: int


class RepoInfo(Response, frozen=True, kw_only=True):
    id: str
    name: str
    trouble: str = ""
    """Why sessions, or those of coding agents, cannot use it now; absent if they can."""


class RepoList(Response, frozen=True, kw_only=True):
    repos: list[RepoInfo]


class AttachmentInfo(Response, frozen=True, kw_only=True):
    name: str
    kind: str
    media_type: str = ""
    size: int = 0
    url: str = ""
    """Where the file can be downloaded; absent if it is not stored."""


class TextContent(Response, frozen=True, kw_only=True, tag="text"):
    text: str
    partial: bool
    """The text was cut off: the turn failed or was stopped."""
    attachments: tuple[AttachmentInfo, ...] = ()
    is_failure: bool = False
    """The text says why there is no answer."""


class PlanStepInfo(Response, frozen=True, kw_only=True):
    content: str
    status: str


class PlanContent(Response, frozen=True, kw_only=True, tag="plan"):
    steps: list[PlanStepInfo]


class FileDiffInfo(Response, frozen=True, kw_only=True):
    """The change of one file as a unified diff."""

    path: str
    diff: str


class ToolContent(Response, frozen=True, kw_only=True, tag="tool"):
    tool: str
    """For a coding agent, the kind of the call, such as `edit` or `execute`."""
    args: dict[str, Any]  # The tool alone knows their shape.
    result: str | None
    """None while the tool has not finished."""
    is_error: bool = False
    title: str | None = None
    """A few words of a coding agent about the call."""
    diffs: list[FileDiffInfo] = []
    seconds: float | None = None
    """How long the call took, with the wait for an approval. Absent while the tool has not finished."""


class ApprovalContent(Response, frozen=True, kw_only=True, tag="approval"):
    """A question of the agent about a tool call. `POST .../approvals/{approvalId}` answers it."""

    approval_id: str
    question: str
    decision: str | None
    """`approved`, `denied` or `expired`; None while the question is open."""


class FileContent(Response, frozen=True, kw_only=True, tag="file"):
    file: AttachmentInfo


Content = TextContent | PlanContent | ToolContent | ApprovalContent | FileContent


class ApiMessage(Response, frozen=True, kw_only=True):
    id: str
    session_id: str
    role: Role
    content: Content
    timestamp: UtcTime
    seq: int | UnsetType = UNSET
    """The position in the session, for `since`. Absent in the response to a prompt, which is still to be stored."""
    turn: str | None = None
    sender: str = ""
    """Who has written a message of a user: the name of a person, or else their id."""
    schedule: str = ""
    """The schedule that has sent a message of a user."""
    in_reply_to: str | None = None
    """The id of the prompt that a system message is about, if that prompt was not answered."""
    model: str = ""
    """The model that has written the text, or called the tool."""
    usage: TokenCount | None = None
    """Of the step of the agent that begins with this message, if the provider counts tokens."""


class SessionDetail(SessionSummary, frozen=True, kw_only=True):
    """A session, its repository and all its messages."""

    repo: RepoInfo | None
    messages: list[ApiMessage]


class MessageList(Response, frozen=True, kw_only=True):
    messages: list[ApiMessage]


EventName = Literal["message", "delta", "text", "turn", "status", "title", "gone"]


class StreamEvent(Response, frozen=True, kw_only=True):
    """One event of a stream, as a client parses it."""

    event: EventName
    data: Annotated[str, Meta(description="JSON: a `Message` for `message`, a small object for the others.")]
    id: Annotated[str, Meta(description="For `Last-Event-ID`. Absent in events that are not stored.")] = ""


class SearchHit(Response, frozen=True, kw_only=True):
    session_id: str
    title: str
    role: Role
    text: str
    timestamp: UtcTime
    is_archived: Annotated[bool, Meta(description="The session has to be restored before it can be used.")]


class SearchHits(Response, frozen=True, kw_only=True):
    hits: list[SearchHit]
    is_complete: bool
    """False if the search stopped early, so that there may be more."""


class AgentInfo(Response, frozen=True, kw_only=True):
    id: str
    model: str | None
    backend: str
    tools: list[str]
    models: list[str] = []
    """The models that the caller may choose with `/model`."""


class AgentList(Response, frozen=True, kw_only=True):
    agents: list[AgentInfo]


class RoleInfo(Response, frozen=True, kw_only=True):
    """A role. A list that is null limits nothing."""

    name: str
    is_configured: bool
    """False for a role that people or tokens have, and that the settings no longer define."""
    commands: list[str] | None
    agents: list[str] | None
    models: list[str] | None
    tools: list[str] | None
    ask: list[str]
    workspaces: list[str] | None
    approve: ApprovalRight
    moderate: bool
    tokens_per_day: int | None
    tokens_per_turn: int | None
    cost_per_day: float | None
    people: list[str]
    """Those whom the settings give the role, and those who were approved with it."""
    chats: list[str]
    tokens: list[str]
    """The ids of the tokens that have the role."""


class RoleList(Response, frozen=True, kw_only=True):
    roles: list[RoleInfo]


class UsageOfPerson(TokenCount, frozen=True, kw_only=True):
    person: str


class UsageReport(Response, frozen=True, kw_only=True):
    day: str
    total: TokenCount
    people: list[UsageOfPerson]


class UsageOfDay(TokenCount, frozen=True, kw_only=True):
    day: str
    person: str
    model: str
    agent: str
    """Empty if it is not known, because an earlier version has counted it."""


class UsageHistory(Response, frozen=True, kw_only=True):
    since: str
    until: str
    rows: list[UsageOfDay]
    """The newest day first, for each person, model and agent."""
    is_complete: bool
    """False if there are more than 20,000 rows."""


class HealthReport(Response, frozen=True, kw_only=True):
    version: str
    ready: bool
    troubles: list[str]
    active_sessions: int
    max_active_sessions: int
    running_turns: int
    waiting_messages: int


class StoredUpload(Response, frozen=True, kw_only=True):
    """The fields of an attachment for a prompt."""

    ref: str
    name: str
    size: int
    media_type: str


class ApprovalDecision(Response, frozen=True, kw_only=True):
    approval_id: str
    decision: str


class ProblemDocument(Struct, frozen=True, kw_only=True):
    """An error (RFC 9457). `detail` says what is wrong and what to do."""

    type: str
    title: str
    status: int
    detail: str


ScheduleId = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,79}$")]
_Chat = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,63}:\S+$",
        max_length=400,
        description="A channel and the id of the chat or person on it.",
        examples=["telegram:123456"],
    ),
]
_When = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=100,
        description="A cron line, an interval or a time, as `/schedule add` takes it.",
        examples=["0 8 * * 1-5", "every 2h", "2027-05-01T18:00"],
    ),
]
_Agent = Annotated[
    str,
    Meta(pattern=r"^([a-z0-9][a-z0-9_-]{0,63})?$", description="The agent that answers. Empty: that of the chat."),
]
_SchedulePrompt = Annotated[str, Meta(max_length=8_000)]
_Tokens = Annotated[int, Meta(ge=0, le=10**12)]
_Cost = Annotated[float, Meta(ge=0, le=10**9)]
_Jitter = Annotated[float, Meta(ge=0, le=3_600, description="Seconds by which a run may be late.")]


class ScheduleCheckInfo(Request, frozen=True, kw_only=True):
    """What is looked at before a run, and decides whether the model is asked: a command or an address."""

    command: Annotated[str, Meta(max_length=4_000)] = ""
    url: Annotated[str, Meta(max_length=4_000)] = ""
    pointer: Annotated[str, Meta(max_length=400)] = ""
    on_change: bool = False
    quote: bool = True


class NewScheduleBody(Request, frozen=True, kw_only=True):
    chat: _Chat
    when: _When
    chat_kind: Literal["direct", "group", "channel"] = "direct"
    chat_account: Name = "default"
    chat_thread: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    zone: Annotated[str, Meta(max_length=64, description="Default: `gateway.timezone`.")] = ""
    prompt: _SchedulePrompt = ""
    deliver_only: bool = False
    agent: _Agent = ""
    session: Literal["own", "chat"] = "own"
    missed: Literal["once", "skip"] = "once"
    jitter: _Jitter = 0.0
    check: ScheduleCheckInfo | None = None
    tokens_per_run: _Tokens = 0
    tokens_per_day: _Tokens = 0
    cost_per_day: _Cost = 0.0


class ScheduleChanges(Request, frozen=True, kw_only=True):
    """The fields that are not given stay as they are."""

    paused: bool | UnsetType = UNSET
    when: _When | UnsetType = UNSET
    zone: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    prompt: _SchedulePrompt | UnsetType = UNSET
    deliver_only: bool | UnsetType = UNSET
    agent: _Agent | UnsetType = UNSET
    session: Literal["own", "chat"] | UnsetType = UNSET
    missed: Literal["once", "skip"] | UnsetType = UNSET
    jitter: _Jitter | UnsetType = UNSET
    check: ScheduleCheckInfo | UnsetType | None = UNSET
    tokens_per_run: _Tokens | UnsetType = UNSET
    tokens_per_day: _Tokens | UnsetType = UNSET
    cost_per_day: _Cost | UnsetType = UNSET


class SchedulesQuery(Request, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=200)] = 100
    after: Annotated[str, Meta(max_length=80, description="The last id of the page before.")] = ""


class ScheduleInfo(Response, frozen=True, kw_only=True):
    id: str
    number: Annotated[int, Meta(description="The number that people see in its chat.")]
    state: Literal["active", "paused", "running", "ended", "deleted"]
    when: str
    zone: str
    chat: str
    chat_kind: Literal["direct", "group", "channel"]
    chat_account: str
    prompt: str
    session: Literal["own", "chat"]
    missed: Literal["once", "skip"]
    made_by: str
    created_at: UtcTime
    name: Annotated[str, Meta(description="The name in the configuration.")] | None = None
    next_at: UtcTime | None = None
    chat_thread: str | None = None
    deliver_only: bool = False
    agent: str | None = None
    jitter: float = 0.0
    check: ScheduleCheckInfo | None = None
    tokens_per_run: int = 0
    tokens_per_day: int = 0
    cost_per_day: float = 0.0
    failures: Annotated[int, Meta(description="The failed runs in a row.")] = 0
    note: str = ""


class ScheduleList(Response, frozen=True, kw_only=True):
    schedules: list[ScheduleInfo]


class ScheduleRunInfo(Response, frozen=True, kw_only=True):
    """A run, or several in a row that did nothing for the same reason."""

    number: int
    state: Literal["running", "done", "delivered", "unchanged", "skipped", "failed", "stopped"]
    planned_at: UtcTime
    started_at: UtcTime
    ended_at: UtcTime | None = None
    times: int = 1
    session: Annotated[int, Meta(description="The number of its session in the chat.")] | None = None
    note: str = ""
    tokens: int = 0
    cost_micros: int = 0


class ScheduleRuns(Response, frozen=True, kw_only=True):
    runs: list[ScheduleRunInfo]

"""The types of the API for administration, in the same style as those of the session API."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from config import Kind, LogLevel, Origin
from gateway.api.types import Request, Response, TokenCount
from gateway.sessions.state import UtcTime

Node = Annotated[str, Meta(max_length=200, description="The name of a node of the cluster. Default: the one asked.")]


class LogQuery(Request, frozen=True, kw_only=True):
    level: Annotated[LogLevel, Meta(description="Lines of this level and above.")] = LogLevel.DEBUG
    q: Annotated[str, Meta(max_length=200, description="A text that the line contains.")] = ""
    before: Annotated[int, Meta(ge=0, description="Only lines before this number, for older ones.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200
    node: Node = ""


class LogLineInfo(Response, frozen=True, kw_only=True):
    number: int
    at: UtcTime
    level: LogLevel
    event: str
    fields: str
    """A JSON object with the rest of the line. Secrets are masked."""


class LogLines(Response, frozen=True, kw_only=True):
    """Lines of the log, the oldest first."""

    lines: list[LogLineInfo]
    has_older: bool
    """Whether there are older lines in memory. The gateway keeps the last 2,000."""


class ChannelState(Response, frozen=True, kw_only=True):
    name: str
    account: str
    state: str
    """`up`, `down`, or another word of the supervisor."""
    reason: str
    since: UtcTime
    last_event_at: UtcTime | None
    last_error: str
    last_error_at: UtcTime | None


Activity = Literal["thinking", "writing", "tool", "approval"]


class RunningTurn(Response, frozen=True, kw_only=True):
    session_id: str
    title: str
    channel: str
    agent: str
    seconds: float
    activity: Activity
    detail: str = ""
    """The tool that runs, or that a person is asked about."""
    node: str = ""


class ModelState(Response, frozen=True, kw_only=True):
    name: str
    requests: int
    failed: int
    failures_in_a_row: int
    mean_seconds: float
    most_within_seconds: float | None
    """The 95th percentile of the response time."""


class NodeState(Response, frozen=True, kw_only=True):
    name: str
    address: str
    is_this: bool


class StorageState(Response, frozen=True, kw_only=True):
    engine: str
    database: str
    schema: str
    spool_bytes: int | None
    """Null if the spool did not answer in time."""
    messages: dict[str, int]
    """Messages that are not answered yet, by state."""
    replies: dict[str, int]
    """Replies that are not delivered yet, by state."""
    slow_commits: int
    flush_age_seconds: float
    flush_failures: int


class GatewayOverview(Response, frozen=True, kw_only=True):
    """The state of the gateway, or of one node of a cluster. Its counts of running work are those of this node."""

    version: str
    python: str
    state: str
    """`ready`, `degraded` or `not ready`."""
    ready: bool
    troubles: list[str]
    warnings: list[str]
    notes: list[str]
    taken_at: UtcTime
    started_at: UtcTime
    uptime_seconds: float
    channels: list[ChannelState]
    turns_running: int
    turns_awaiting_approval: int
    turns: list[RunningTurn]
    """Those that have been running for longest, of all nodes."""
    messages_waiting: int
    queue_limit: int
    replies_waiting: int
    sessions: int
    storage: StorageState
    memory_bytes: int
    cpu_seconds: float
    open_files: int
    disk_free_bytes: int | None
    models: list[ModelState]
    coding_agents: dict[str, int]
    usage_today: TokenCount
    errors_last_hour: int
    last_errors: list[LogLineInfo]
    """The newest errors of the last hour."""
    open_approvals: int
    waiting_people: int
    nodes: list[NodeState]
    """The nodes of the cluster; empty without one."""
    can_restart: bool
    """Whether a restart and a reload are possible: not in `gatehouse chat`."""


class LocalQuery(Request, frozen=True, kw_only=True):
    local: Annotated[bool, Meta(description="Leave out the work of the other nodes of a cluster.")] = False


GatewayEventName = Literal["reset", "overview", "sessions", "approvals", "people", "log"]


class GatewayEventsQuery(Request, frozen=True, kw_only=True):
    topics: Annotated[
        str,
        Meta(
            pattern=r"^(|(overview|sessions|approvals|people|log)(,(overview|sessions|approvals|people|log))*)$",
            description="`overview`, `sessions`, `approvals`, `people`, `log`; separated by commas. Default: all.",
        ),
    ] = ""


class GatewayEvent(Response, frozen=True, kw_only=True):
    """One event of the gateway, as a client parses it."""

    event: GatewayEventName
    data: Annotated[str, Meta(description="JSON: the type depends on `event`.")]
    id: Annotated[str, Meta(description="For `Last-Event-ID`. Absent in `overview` and `reset`.")] = ""


JsonObject = dict[str, Any]  # Any: JSON of a shape that only the tool knows.


class OpenApproval(Response, frozen=True, kw_only=True):
    """A question of an agent to a person. `POST /api/sessions/{id}/approvals/{approvalId}` answers it."""

    approval_id: str
    session_id: str
    title: str
    channel: str
    chat: str
    agent: str
    asker: str
    """The id of the person whose message has led to the call."""
    asker_name: str
    tool: str
    call_title: str
    """A few words of a coding agent about the call."""
    args: JsonObject
    """All arguments, in full."""
    files: list[str]
    """Files that the call names. If one of them changes, the call is not run."""
    workspace: str


class OpenApprovals(Response, frozen=True, kw_only=True):
    approvals: list[OpenApproval]


class GrantInfo(Response, frozen=True, kw_only=True):
    """A tool call that a person has allowed for good."""

    id: str
    tool: str
    description: str
    agent: str
    workspace: str
    session_key: str
    """The session that it is for; empty: it is for the person."""
    person: str
    by: str
    at: UtcTime


class GrantList(Response, frozen=True, kw_only=True):
    grants: list[GrantInfo]


class ApplicantInfo(Response, frozen=True, kw_only=True):
    """A person who has asked for access."""

    code: str
    id: str
    name: str
    asked_at: UtcTime


class GuestInfo(Response, frozen=True, kw_only=True):
    """A person who was approved."""

    id: str
    name: str
    role: str
    since: UtcTime


class RevokedInfo(Response, frozen=True, kw_only=True):
    id: str
    name: str
    at: UtcTime


class PeopleList(Response, frozen=True, kw_only=True):
    """People with access by approval. `GET /api/roles` has those whom the settings name."""

    waiting: list[ApplicantInfo]
    guests: list[GuestInfo]
    revoked: list[RevokedInfo]


_Code = Annotated[str, Meta(min_length=1, max_length=100)]
_PersonId = Annotated[str, Meta(min_length=1, max_length=1000, description="The id, as `GET /api/people` shows it.")]
_RoleName = Annotated[str, Meta(min_length=1, max_length=64, description="A role of `GET /api/roles`.")]


class ApprovePersonBody(Request, frozen=True, kw_only=True):
    code: _Code
    role: _RoleName | None = None


class DenyPersonBody(Request, frozen=True, kw_only=True):
    code: _Code


class RevokePersonBody(Request, frozen=True, kw_only=True):
    id: _PersonId


class ChangeRoleBody(Request, frozen=True, kw_only=True):
    id: _PersonId
    role: _RoleName


class DeadMessage(Response, frozen=True, kw_only=True):
    """A message that was set aside, because its turn has crashed the gateway several times."""

    id: str
    channel: str
    chat: str
    sender: str
    session_key: str
    accepted_at: UtcTime
    text: str
    """Its beginning."""
    reason: str


class DeadReply(Response, frozen=True, kw_only=True):
    """A part of an answer that was not delivered, or not yet."""

    id: str
    state: str
    """`dead` if it was given up; otherwise it is still tried."""
    channel: str
    chat: str
    created_at: UtcTime
    text: str
    """Its beginning."""
    reason: str


class DeadLetters(Response, frozen=True, kw_only=True):
    messages: list[DeadMessage]
    replies: list[DeadReply]
    unreadable: list[str]
    """Those that another version of Gatehouse has written."""


class DeadLettersBody(Request, frozen=True, kw_only=True):
    messages: Annotated[tuple[str, ...], Meta(max_length=1000, description="The ids of messages.")] = ()
    replies: Annotated[tuple[str, ...], Meta(max_length=1000, description="The ids of replies.")] = ()


class HandledLetters(Response, frozen=True, kw_only=True):
    """What was retried or dropped. Those that are missing here were gone."""

    messages: list[str]
    replies: list[str]


class SettingInfo(Response, frozen=True, kw_only=True):
    """A key of the configuration with the value in effect. Secrets in it are `***`."""

    key: str
    value: Any  # JSON of any shape.
    origin: Origin
    kind: Kind
    is_optional: bool
    """Whether the key may have no value: null."""
    is_changeable: bool
    """Whether the API may change it. All keys can be changed on the machine, with `gatehouse config set`."""
    needs_restart: bool
    description: str
    choices: tuple[str, ...] = ()
    reference: str = ""
    """Where a secret is stored, such as `env:NAME`."""


class SettingsProblem(Response, frozen=True, kw_only=True):
    key: str
    message: str
    hint: str


class SettingList(Response, frozen=True, kw_only=True):
    path: str
    """The file; one that does not exist yet is created by the first change."""
    version: str
    """Of the file. A change has to name it, so that it does not undo another one."""
    settings: list[SettingInfo]
    problems: list[SettingsProblem]
    """Mistakes in the file as it is now. The gateway goes on with the settings that it has read before."""
    warnings: list[str]


class SettingsBody(Request, frozen=True, kw_only=True):
    changes: Annotated[
        dict[str, Any],  # JSON of any shape: the settings are validated as a whole.
        Meta(
            min_length=1,
            max_length=100,
            description="New values by key; null removes a key, so that its default applies.",
            examples=[{"limits.tokens_per_turn": 200000}],
        ),
    ]
    version: Annotated[str, Meta(max_length=64, description="The `version` that the change was made for.")] = ""


class SettingsPreview(Response, frozen=True, kw_only=True):
    diff: str
    """The change of the file as a unified diff, without lines around it. Secrets are `***`."""
    applied: list[str]
    """Keys that a reload applies."""
    restart_needed: list[str]
    warnings: list[str]


class AppliedSettings(SettingsPreview, frozen=True, kw_only=True):
    version: str


class ReloadReport(Response, frozen=True, kw_only=True):
    applied: list[str]
    restart_needed: list[str]


FindingLevel = Literal["ok", "warning", "error"]


class FindingInfo(Response, frozen=True, kw_only=True):
    about: str
    level: FindingLevel
    message: str
    fix: str
    can_be_repaired: bool
    """Whether `POST /api/doctor/repair` fixes it, without losing data."""


class DoctorBody(Request, frozen=True, kw_only=True):
    peers: Annotated[bool, Meta(description="Also call platforms and models, which costs a few tokens.")] = False


class DoctorReport(Response, frozen=True, kw_only=True):
    findings: list[FindingInfo]
    repaired: list[FindingInfo]


class RestartReport(Response, frozen=True, kw_only=True):
    detail: str


class ToolInfo(Response, frozen=True, kw_only=True):
    name: str
    description: str
    schema: JsonObject
    """The JSON Schema of its arguments."""
    needs_approval: bool
    server: str
    """The MCP server that it comes from; empty: it is built in."""


class AgentDetail(Response, frozen=True, kw_only=True):
    id: str
    backend: str
    provider: str
    model: str | None
    fallbacks: list[str]
    models: list[str]
    """The models that everyone may choose who may use it."""
    is_choosable: bool
    workspace: str
    """`private` or `shared`."""
    max_iterations: int
    ask: list[str]
    """Patterns of tools that a person has to approve."""
    always_allow: list[str]
    """Patterns of tools that a person may allow for good."""
    skills: list[str]
    tools: list[ToolInfo]
    trouble: str
    """Why it cannot work as configured now; empty if it can."""
    last_error: str
    """Why its model failed last, since the start; empty if it never did."""
    last_error_at: UtcTime | None


class AgentDetails(Response, frozen=True, kw_only=True):
    agents: list[AgentDetail]


class LeftOutToolInfo(Response, frozen=True, kw_only=True):
    name: str
    reason: str


class McpServerInfo(Response, frozen=True, kw_only=True):
    name: str
    trouble: str
    """Why its tools cannot be used now; empty if they can."""
    tools: list[str]
    left_out: list[LeftOutToolInfo]
    """Tools that no agent gets, because they exceed a limit."""


class McpServerList(Response, frozen=True, kw_only=True):
    servers: list[McpServerInfo]


class TryToolBody(Request, frozen=True, kw_only=True):
    args: JsonObject


class ToolTrial(Response, frozen=True, kw_only=True):
    output: str
    is_error: bool
    seconds: float


class ReplyBody(Request, frozen=True, kw_only=True):
    text: Annotated[str, Meta(min_length=1, max_length=100_000)]


class WrittenReply(Response, frozen=True, kw_only=True):
    text: str
    """The text with its mark, as the chat gets it."""
    is_sent: bool
    """False if there is no chat to send it to: it is in the transcript only."""

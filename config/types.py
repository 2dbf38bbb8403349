"""Value types of the settings: enums, numbers, names, paths and URLs, and the base class of all tables."""

import os
import re
from datetime import UTC, tzinfo
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
)

from config.errors import InvalidValue
from config.secrets import Secret, context_of, expand_home, is_reference, resolve

DAY = 86_400
SLUG = "^[a-z0-9][a-z0-9_-]{0,63}$"


class Table(BaseModel):
    """Base class of all tables.

    Pydantic validates the fields in their order: in `info.data` a validator finds only the fields above its own.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        # Each class would otherwise build its own validator at import. `Settings` builds one for all of them.
        defer_build=True,
        hide_input_in_errors=True,
        ser_json_inf_nan="constants",  # TOML has `inf` and `nan`; JSON's null would not load again.
    )


class DmScope(StrEnum):
    """Which direct messages share a conversation."""

    MAIN = "main"
    PER_PEER = "per-peer"
    PER_CHANNEL_PEER = "per-channel-peer"
    PER_ACCOUNT_CHANNEL_PEER = "per-account-channel-peer"


class GroupScope(StrEnum):
    """Whether the members of a group share one conversation."""

    SHARED = "shared"
    PER_SENDER = "per-sender"


class DmPolicy(StrEnum):
    """Who may send the bot direct messages."""

    PAIRING = "pairing"
    ALLOWLIST = "allowlist"
    OPEN = "open"


class GroupPolicy(StrEnum):
    """In which groups the bot answers."""

    ALLOWLIST = "allowlist"
    OPEN = "open"
    OFF = "off"


class BusyMode(StrEnum):
    """How a message is handled that arrives while a turn of its session is running."""

    FOLLOWUP = "followup"
    COLLECT = "collect"
    INTERRUPT = "interrupt"
    STEER = "steer"


class ApprovalRight(StrEnum):
    """Which tool calls a person may approve: none, their own, or all that are asked about in the same chat."""

    NONE = "none"
    OWN = "own"
    CHAT = "chat"


class WaitingSign(StrEnum):
    """How the sender learns that a message is queued."""

    REACTION = "reaction"
    NOTE = "note"
    OFF = "off"


class LogFormat(StrEnum):
    """Format of log lines. `auto` is console on a terminal and JSON otherwise."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Backend(StrEnum):
    """Runs an agent: the built-in loop around a model, or a process that speaks the Agent Client Protocol."""

    LLM = "llm"
    ACP = "acp"


class SearchEngine(StrEnum):
    """Answers `web_search`. `template`: any that answers a GET request with JSON."""

    SEARXNG = "searxng"
    BRAVE = "brave"
    TAVILY = "tavily"
    TEMPLATE = "template"


class SpeechFormat(StrEnum):
    """The format of recordings that `speak` makes. `opus` is that of voice messages."""

    OPUS = "opus"
    MP3 = "mp3"
    AAC = "aac"
    FLAC = "flac"
    WAV = "wav"


class AgentPreset(StrEnum):
    """A known coding agent, by its vendor's name for it."""

    CLAUDE = "claude"
    CODEX = "codex"
    COPILOT = "copilot"
    GEMINI = "gemini"
    OPENCODE = "opencode"
    QWEN = "qwen"


PRIVATE_WORKSPACES = ".private"
"""Ends the name of the folder with an agent's private workspaces. No agent's name contains a dot."""


API_CHANNEL = "api"
"""The channel of the sessions that programs start with the session API."""
OPENAI_CHANNEL = "openai"
"""The channel of the sessions of programs that speak OpenAI's protocol."""
PROGRAM_CHANNELS = frozenset({API_CHANNEL, OPENAI_CHANNEL})
"""Channels of the HTTP API, which no adapter may be called after."""


WEBHOOK_CHANNEL = "webhook"
"""The channel that has webhooks."""


class HookPreset(StrEnum):
    """How the calls of a webhook are signed."""

    STANDARD = "standard"
    GITHUB = "github"
    GITLAB = "gitlab"
    STRIPE = "stripe"
    SLACK = "slack"


class HookAnswer(StrEnum):
    """Where the answer to the call of a webhook goes."""

    NONE = "none"
    SYNC = "sync"
    CALLBACK = "callback"
    CHAT = "chat"


class HookChatKind(StrEnum):
    """The kind of chat that gets the answers to a webhook."""

    DIRECT = "direct"
    GROUP = "group"
    CHANNEL = "channel"


class MissedRun(StrEnum):
    """What becomes of a schedule that was due while the gateway was down: it runs once, or at its next time."""

    ONCE = "once"
    SKIP = "skip"


class ScheduleSession(StrEnum):
    """Where the agent answers a schedule: in a session of its own, or in the active one of the chat."""

    OWN = "own"
    CHAT = "chat"


class WorkspaceMode(StrEnum):
    """Who works in the workspace of an agent: each scope in its own, or all scopes in one."""

    PRIVATE = "private"
    SHARED = "shared"


class StorageEngine(StrEnum):
    """What stores sessions and the spool."""

    FILES = "files"
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


class FileSharing(StrEnum):
    """Where the nodes of a cluster share attachments: nowhere, in the database of storage.url, or in an S3 bucket."""

    NONE = "none"
    DATABASE = "database"
    S3 = "s3"


class MigrateMode(StrEnum):
    """Who migrates the database to a new schema: the gateway when it starts, or a person."""

    AUTO = "auto"
    MANUAL = "manual"


class ProviderKind(StrEnum):
    OFFLINE = "offline"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"


# Strict, because pydantic would otherwise accept "yes" for true and "8420" for 8420.
Flag = Annotated[bool, Field(strict=True)]
Integer = Annotated[int, Field(strict=True)]
Seconds = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Price = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Slug = Annotated[str, Field(pattern=SLUG)]
Text = Annotated[str, Field(min_length=1)]

Id = Annotated[
    Text,
    # Many platforms use numbers as ids, and people write them without quotes.
    BeforeValidator(lambda value: str(value) if isinstance(value, int) and not isinstance(value, bool) else value),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
]
"""An id on a platform."""


def _check_platform_id(value: str) -> str:
    channel, _, peer = value.partition(":")
    # `telegram:*` is rejected: an owner or a linked person is one person, never everyone.
    if not re.fullmatch(SLUG, channel) or not peer.strip(" *"):
        raise InvalidValue("must be a channel and an id on it", 'write it like "telegram:123456"')
    return value


PlatformId = Annotated[str, AfterValidator(_check_platform_id)]
"""An id with its channel: `telegram:123`."""


def _make_absolute(value: Path, info: ValidationInfo) -> Path:
    if "\0" in str(value) or not str(value):
        raise InvalidValue("is not a valid path")
    context = context_of(info)
    return context.path(value) if context else expand_home(value)


FilePath = Annotated[Path, AfterValidator(_make_absolute)]
"""A path to a file or folder. Relative paths start at the config file's folder."""


def resolve_links(path: Path) -> Path:
    """Return `path` without links and `..`. A path that cannot be resolved stays as it is, and cannot be opened."""
    try:
        return path.resolve()
    except RuntimeError:  # Raised by Python before 3.13 for a link that leads to itself.
        return path


def check_url(value: str) -> str:
    """Return a URL of HTTP. Raises `InvalidValue` for anything else."""
    # The messages do not quote the value: people do put passwords into URLs.
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in {"http", "https"} or not host:
        raise InvalidValue("must be a URL that starts with http:// or https://")
    if parts.username is not None:
        raise InvalidValue("must not contain a user name or password", "put the secret into the key meant for it")
    return value


Url = Annotated[str, AfterValidator(check_url)]

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?")


def _check_headers(headers: dict[str, Secret]) -> dict[str, Secret]:
    for name, value in headers.items():
        # Neither is quoted: a secret may have been written in the place of the name.
        if not _HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value.reveal()):
            raise InvalidValue(
                "contains a name or a value that no HTTP header can have",
                'write it like { Authorization = "env:NAME" }',
            )
    return headers


Headers = Annotated[dict[Text, Secret], AfterValidator(_check_headers)]
"""Headers of HTTP requests."""


def _resolve_references(value: Any, info: ValidationInfo) -> Any:  # noqa: ANN401  # Each channel defines its own options.
    if isinstance(value, str) and is_reference(value):
        return resolve(value, context_of(info))
    if isinstance(value, dict):
        return {key: _resolve_references(inner, info) for key, inner in value.items()}
    return [_resolve_references(inner, info) for inner in value] if isinstance(value, list) else value


def _hide_texts(value: Any) -> Any:  # noqa: ANN401  # As above.
    if isinstance(value, str):
        return "***"
    if isinstance(value, dict):
        return {key: _hide_texts(inner) for key, inner in value.items()}
    return [_hide_texts(inner) for inner in value] if isinstance(value, list) else value


Options = Annotated[
    dict[str, Any],
    AfterValidator(_resolve_references),
    # Only the channel knows which of its options are secret, so none of the texts is shown.
    PlainSerializer(_hide_texts, return_type=dict[str, Any], when_used="json"),
]
"""A table that Gatehouse does not check. References in it, at any depth, become a `Secret`."""


_UNKNOWN = (KeyError, ValueError, OSError)
"""`ZoneInfo` raises these for unknown names, for malformed names, and for folders of the database."""


def _check_name(name: str) -> str:
    try:
        ZoneInfo(name)
    except _UNKNOWN as unknown:
        raise InvalidValue("is not a time zone of this system", 'write it like "Europe/Berlin" or "UTC"') from unknown
    return name


TimeZoneName = Annotated[str, AfterValidator(_check_name)]


@cache
def get_time_zone(name: str | None) -> tzinfo:
    """Return the time zone `name`, or for None the system's zone as it was at the first call."""
    return ZoneInfo(name) if name is not None else system_time_zone(os.environ.get("TZ", ""), Path("/etc/localtime"))


def system_time_zone(variable: str, localtime: Path) -> tzinfo:
    """Return the system's zone from $TZ (`variable`) or the file `localtime`, like the C library; UTC if both fail."""
    try:
        if variable:
            return ZoneInfo(variable.removeprefix(":"))
        # Usually a link into the database, whose path is the name of the zone.
        _, is_linked, name = str(localtime.resolve()).partition("zoneinfo/")
        if is_linked:
            return ZoneInfo(name)
        with localtime.open("rb") as file:
            return ZoneInfo.from_file(file, key="local")
    except _UNKNOWN:
        return UTC

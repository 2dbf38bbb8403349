"""Value types of the settings: enums, strings and numbers with limits, paths, and the base class of all tables."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

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

from config.errors import Mistake
from config.secrets import Source, expand, is_reference, resolve, source_of


class DmScope(StrEnum):
    """Which direct messages share a conversation."""

    MAIN = "main"
    PER_PEER = "per-peer"
    PER_CHANNEL_PEER = "per-channel-peer"
    PER_ACCOUNT_CHANNEL_PEER = "per-account-channel-peer"


class GroupScope(StrEnum):
    """Whether the people of a group share one conversation."""

    SHARED = "shared"
    PER_SENDER = "per-sender"


class DmPolicy(StrEnum):
    """Who may write to the bot directly."""

    PAIRING = "pairing"
    ALLOWLIST = "allowlist"
    OPEN = "open"


class GroupPolicy(StrEnum):
    """In which groups the bot answers."""

    ALLOWLIST = "allowlist"
    OPEN = "open"
    OFF = "off"


class BusyMode(StrEnum):
    """What becomes of a message that comes in while its session is busy."""

    FOLLOWUP = "followup"
    COLLECT = "collect"
    INTERRUPT = "interrupt"
    STEER = "steer"


class WaitingSign(StrEnum):
    """How somebody learns that a message has to wait for others."""

    REACTION = "reaction"
    NOTE = "note"
    OFF = "off"


class LogFormat(StrEnum):
    """How log lines look; `auto` is console on a terminal and JSON otherwise."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Backend(StrEnum):
    """What runs an agent: our own loop around a model, or a process that speaks the Agent Client Protocol."""

    LLM = "llm"
    ACP = "acp"


class ProviderKind(StrEnum):
    OFFLINE = "offline"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"


SLUG = "^[a-z0-9][a-z0-9_-]{0,63}$"

Flag = Annotated[bool, Field(strict=True)]
Whole = Annotated[int, Field(strict=True)]
Seconds = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Price = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Slug = Annotated[str, Field(pattern=SLUG)]
Text = Annotated[str, Field(min_length=1)]


def _number_as_text(value: object) -> object:
    """Take the bare numbers that most platforms use as ids; TOML knows them from text, we do not care."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Id = Annotated[
    Text, BeforeValidator(_number_as_text), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}]})
]
"""An id on a platform."""


def _check_platform_id(value: str) -> str:
    channel, _, peer = value.partition(":")
    if not re.fullmatch(SLUG, channel) or not peer.strip(" *"):
        raise Mistake("must be a channel and an id on it", 'write it like "telegram:123456"')
    return value


PlatformId = Annotated[str, AfterValidator(_check_platform_id)]
"""An id with the channel it belongs to, `telegram:123`."""


def _locate(value: Path, info: ValidationInfo) -> Path:
    if "\0" in str(value) or not str(value):
        raise Mistake("is no path")
    source = source_of(info)
    return source.path(value) if source else expand(value)


Location = Annotated[Path, AfterValidator(_locate)]
"""A path; relative ones lie beside the config file."""


def _check_url(value: str) -> str:
    # Nothing of the value is repeated: people do put passwords into URLs.
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in {"http", "https"} or not host:
        raise Mistake("must be an address that starts with http:// or https://")
    if parts.username is not None:
        raise Mistake("must not hold a name or password", "put the secret into the key meant for it")
    return value


Url = Annotated[str, AfterValidator(_check_url)]


def _resolve_within(value: Any, source: Source | None) -> Any:  # noqa: ANN401  # Options are whatever a channel wants.
    if isinstance(value, str) and is_reference(value):
        return resolve(value, source)
    if isinstance(value, dict):
        return {key: _resolve_within(inner, source) for key, inner in value.items()}
    return [_resolve_within(inner, source) for inner in value] if isinstance(value, list) else value


def _resolve_options(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    return {key: _resolve_within(inner, source_of(info)) for key, inner in value.items()}


def _hide_texts(value: Any) -> Any:  # noqa: ANN401  # As above.
    if isinstance(value, str):
        return "***"
    if isinstance(value, dict):
        return {key: _hide_texts(inner) for key, inner in value.items()}
    return [_hide_texts(inner) for inner in value] if isinstance(value, list) else value


Options = Annotated[
    dict[str, Any],
    AfterValidator(_resolve_options),
    PlainSerializer(_hide_texts, return_type=dict[str, Any], when_used="json"),
]
"""A free table; a reference anywhere in it becomes a `Secret`. Any text may be one, so none is shown."""


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach `host`; an unusual spelling counts as reachable by others."""
    return host in {"localhost", "::1"} or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


DAY = 86_400


class Table(BaseModel):
    # Each class would otherwise build its own validator at import; `Settings` builds one for all of them.
    # TOML has `inf` and `nan`, so they are dumped as they are.
    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, hide_input_in_errors=True, ser_json_inf_nan="constants"
    )

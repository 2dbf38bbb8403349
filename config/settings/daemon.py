"""The daemon and its HTTP server."""

import re
from datetime import tzinfo
from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from config.errors import InvalidValue
from config.secrets import Secret, context_of, is_reference
from config.types import (
    DAY,
    FilePath,
    Integer,
    LogFormat,
    LogLevel,
    PlatformId,
    Seconds,
    Table,
    Text,
    TimeZoneName,
    get_time_zone,
)

_MIN_TOKEN_LENGTH = 16


class GatewaySettings(Table):
    """The daemon."""

    data_dir: FilePath = Field(
        default=Path("~/.gatehouse"),
        validate_default=True,
        description="The folder for sessions, the spool and the generated token.",
    )
    flush_interval: Seconds = Field(
        default=30.0, ge=0.1, le=DAY, description="How many seconds pass between two fsyncs of the transcripts."
    )
    shutdown_timeout: Seconds = Field(
        default=30.0,
        ge=0,
        le=DAY,
        description="How many seconds running turns get to finish when the gateway stops.",
    )
    turn_timeout: Seconds = Field(
        default=600.0, ge=0.1, le=DAY, description="After how many seconds a turn is stopped."
    )
    approval_timeout: Seconds = Field(
        default=1800.0,
        ge=1,
        le=30 * DAY,
        description="After how many seconds a tool call that was not approved is denied.",
    )
    max_parallel_turns: Integer = Field(default=64, ge=1, description="How many turns may run at the same time.")
    max_queued_per_session: Integer = Field(
        default=100, ge=1, description="How many messages may wait in one session before more are rejected."
    )
    max_queued: Integer = Field(
        default=10_000, ge=1, description="How many messages may wait in all sessions before more are rejected."
    )
    max_message_chars: Integer = Field(
        default=32_000, ge=100, description="The longest message that is accepted, in characters."
    )
    max_reply_parts: Integer = Field(
        default=5,
        ge=0,
        description="How many messages an answer may take. A longer one is sent as a file, where the channel can send "
        "files; 0 means that answers are always split.",
    )
    max_backlog_age: Seconds = Field(
        default=86_400.0,
        ge=0,
        le=100 * 365 * DAY,
        description="How old, in seconds, a message from while the gateway was down may be to still get an answer.",
    )
    workspace_root: FilePath = Field(
        default_factory=lambda data: data["data_dir"] / "workspace",
        description='The folder of the workspaces, outside data_dir. Default: "workspace" in data_dir.',
    )
    repo_root: FilePath | None = Field(
        default=None,
        description="The folder in which the repos of programs must lie. Default: workspace_root if that is set, else "
        "they may lie anywhere.",
    )
    log_format: LogFormat = Field(
        default=LogFormat.AUTO, description="The format of log lines; auto: console on a terminal, JSON otherwise."
    )
    log_level: LogLevel = Field(default=LogLevel.INFO, description="The lowest level that is logged.")
    log_file: FilePath | None = Field(
        default=None, description="A file to which log lines are written as well, as JSON. Default: none."
    )
    log_file_bytes: Integer = Field(
        default=10_000_000, ge=10_000, description="The size in bytes at which the log file is rotated."
    )
    log_file_count: Integer = Field(
        default=5, ge=1, le=1000, description="How many rotated log files are kept, as .1, .2 and so on."
    )
    keep_environment: tuple[Text, ...] = Field(
        default=(),
        description="Environment variables that the process keeps, by name or pattern. Most others are removed once "
        "the configuration is read, so that no program inherits a secret.",
    )
    owners: tuple[PlatformId, ...] = Field(
        default=(),
        description='People who may use the commands that affect others, like "telegram:123456". People approved as '
        "owners may use them too.",
    )
    timezone: TimeZoneName | None = Field(
        default=None,
        description='The time zone of reminders and of the agents, like "Europe/Berlin". Default: the system\'s.',
    )

    @property
    def root_of_repos(self) -> Path | None:
        """The folder in which the repos of programs must lie; None if they may lie anywhere."""
        if self.repo_root is None and "workspace_root" in self.model_fields_set:
            return self.workspace_root
        return self.repo_root

    @property
    def zone(self) -> tzinfo:
        return get_time_zone(self.timezone)


class HttpSettings(Table):
    """The HTTP server: the web page, the API and the health checks."""

    host: Text = Field(
        default="127.0.0.1", description="The address to listen on; one that other machines can reach needs a token."
    )
    port: Integer = Field(default=8420, ge=0, le=65_535, description="The port to listen on; 0 picks a free one.")
    token: Secret | None = Field(
        default=None,
        validate_default=True,
        description="The token that callers must send, at least 16 characters. Default: generated at the first start.",
    )
    allowed_hosts: tuple[Text, ...] = Field(
        default=(), description="Host names that browsers may use to reach the server, besides those of this machine."
    )
    max_body_bytes: Integer = Field(
        default=1_048_576, ge=4096, description="The largest request body that is accepted."
    )
    open_metrics: bool = Field(
        default=False,
        description="Whether programs on this machine may read /metrics without the token; needs a loopback host.",
    )

    @field_validator("token")
    @classmethod
    def _check_token(cls, token: Secret | None, info: ValidationInfo) -> Secret | None:
        if token is None:
            if not _is_loopback(info):
                raise InvalidValue(
                    "is required, because other machines can reach the address in http.host",
                    "set http.token (at least 16 characters, or `env:NAME`), or set http.host to 127.0.0.1",
                )
            return None
        value, context = token.reveal(), context_of(info)
        if context and not context.resolves and is_reference(value):
            return token  # It was not resolved, so there is nothing to check.
        if len(value) < _MIN_TOKEN_LENGTH:
            raise InvalidValue(
                f"must have at least {_MIN_TOKEN_LENGTH} characters",
                'generate one with: python3 -c "import secrets; print(secrets.token_urlsafe(32))"',
            )
        if not (value.isascii() and value.isprintable()) or " " in value:
            raise InvalidValue("must be ASCII without spaces, since it is sent in an HTTP header")
        return token

    @field_validator("open_metrics")
    @classmethod
    def _check_open_metrics(cls, is_open: bool, info: ValidationInfo) -> bool:  # noqa: FBT001 - pydantic calls it.
        if is_open and not _is_loopback(info):
            raise InvalidValue(
                "must be false, because other machines can reach the address in http.host",
                "let Prometheus send the token (`authorization.credentials_file`), or set http.host to 127.0.0.1",
            )
        return is_open


def _is_loopback(info: ValidationInfo) -> bool:
    """Return whether only this machine can reach the host. An unusual spelling counts as reachable by others."""
    host = str(info.data.get("host", "localhost"))  # An invalid host has its own problem.
    return host in {"localhost", "::1"} or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None

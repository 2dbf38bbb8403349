"""The daemon and its HTTP server."""

from datetime import tzinfo
from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from config.errors import Mistake
from config.secrets import Secret, is_reference, source_of
from config.time_zones import ZoneName, zone_named
from config.types import DAY, Location, LogFormat, LogLevel, PlatformId, Seconds, Table, Text, Whole, is_loopback

_SHORTEST_TOKEN = 16


class GatewaySettings(Table):
    """The daemon itself."""

    data_dir: Location = Field(
        default=Path("~/.gatehouse"),
        validate_default=True,
        description="Where sessions, the spool and the generated token are kept.",
    )
    flush_interval: Seconds = Field(
        default=30.0, ge=0.1, le=DAY, description="Seconds between two moments at which transcripts are made durable."
    )
    shutdown_timeout: Seconds = Field(
        default=30.0,
        ge=0,
        le=DAY,
        description="Seconds that running turns get to finish when the daemon is told to stop.",
    )
    turn_timeout: Seconds = Field(default=600.0, ge=0.1, le=DAY, description="Seconds after which a turn is ended.")
    approval_timeout: Seconds = Field(
        default=1800.0,
        ge=1,
        le=30 * DAY,
        description="Seconds after which a question about a tool that nobody has answered counts as answered with no.",
    )
    max_parallel_turns: Whole = Field(default=64, ge=1, description="How many turns run at the same time.")
    max_queued_per_session: Whole = Field(
        default=100, ge=1, description="How many messages may wait in one session before more are refused."
    )
    max_queued: Whole = Field(
        default=10_000, ge=1, description="How many messages may wait in all sessions together before more are refused."
    )
    max_message_chars: Whole = Field(default=32_000, ge=100, description="The longest message that is accepted.")
    max_backlog_age: Seconds = Field(
        default=86_400.0,
        ge=0,
        le=100 * 365 * DAY,
        description="Seconds after which a message that came in while the daemon was down is not answered any more.",
    )
    workspace_root: Location = Field(
        default_factory=lambda settled: settled["data_dir"] / "workspace",
        description='The folder that the file tools see; without it, "workspace" in data_dir.',
    )
    log_format: LogFormat = Field(
        default=LogFormat.AUTO, description="How log lines look; auto: console on a terminal, JSON otherwise."
    )
    log_level: LogLevel = Field(default=LogLevel.INFO, description="The least important lines that are logged.")
    log_file: Location | None = Field(
        default=None, description="A file that gets the log lines too, as JSON; without it there is none."
    )
    log_file_bytes: Whole = Field(
        default=10_000_000, ge=10_000, description="How large the log file becomes before a new one is begun."
    )
    log_file_count: Whole = Field(
        default=5, ge=1, le=1000, description="How many of the older log files are kept, as .1, .2 and so on."
    )
    owners: tuple[PlatformId, ...] = Field(
        default=(),
        description='Who may use the commands that affect others, like "telegram:123456"; besides those who were '
        "approved as owners.",
    )
    timezone: ZoneName | None = Field(
        default=None,
        description='The time zone in which people mean their times, like "Europe/Berlin"; without it, the system\'s.',
    )

    @property
    def zone(self) -> tzinfo:
        return zone_named(self.timezone)


class HttpSettings(Table):
    """The HTTP server: the web page, the API and the health checks."""

    host: Text = Field(default="127.0.0.1", description="The address to listen on; beyond this machine, set token too.")
    port: Whole = Field(default=8420, ge=0, le=65_535, description="The port to listen on; 0 takes any free one.")
    token: Secret | None = Field(
        default=None,
        validate_default=True,
        description="What a caller must present, at least 16 characters; without it a random one is made on first run.",
    )
    allowed_hosts: tuple[Text, ...] = Field(
        default=(), description="Names, besides those of this machine, by which browsers may reach the server."
    )
    max_body_bytes: Whole = Field(default=1_048_576, ge=4096, description="The largest request body that is read.")
    open_metrics: bool = Field(
        default=False,
        description="Whether programs on this machine may read /metrics without the token; needs a loopback host.",
    )

    @field_validator("token")
    @classmethod
    def _guards_the_door(cls, token: Secret | None, info: ValidationInfo) -> Secret | None:
        if token is None:
            _refuse_an_open_door(str(info.data.get("host", "localhost")))
            return None
        source = source_of(info)
        if source and not source.resolves and is_reference(token.reveal()):
            return token  # It was taken on trust, and says nothing about the strength of what it stands for.
        _refuse_a_weak_token(token.reveal())
        return token

    @field_validator("open_metrics")
    @classmethod
    def _opens_to_this_machine_only(cls, is_open: bool, info: ValidationInfo) -> bool:  # noqa: FBT001 - pydantic calls it.
        if is_open:
            _refuse_metrics_for_all(str(info.data.get("host", "localhost")))
        return is_open


def _refuse_metrics_for_all(host: str) -> None:
    if not is_loopback(host):
        raise Mistake(
            "must be false, because other machines can reach the address in http.host",
            "let Prometheus send the token (`authorization.credentials_file`), or set http.host to 127.0.0.1",
        )


def _refuse_an_open_door(host: str) -> None:
    if not is_loopback(host):
        raise Mistake(
            "is needed, because other machines can reach the address in http.host",
            "set http.token (at least 16 characters, or `env:NAME`), or set http.host to 127.0.0.1",
        )


def _refuse_a_weak_token(value: str) -> None:
    if len(value) < _SHORTEST_TOKEN:
        raise Mistake(
            f"must have at least {_SHORTEST_TOKEN} characters",
            'make one with: python3 -c "import secrets; print(secrets.token_urlsafe(32))"',
        )
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise Mistake("must be plain ASCII without spaces, since it travels in an HTTP header")

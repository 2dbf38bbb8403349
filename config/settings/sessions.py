"""Conversations, the sessions of programs, and limits on the use of models."""

from pydantic import Field, ValidationInfo, field_validator

from config.errors import InvalidValue
from config.secrets import context_of
from config.types import (
    PROGRAM_CHANNELS,
    WEBHOOK_CHANNEL,
    DmScope,
    Flag,
    GroupScope,
    Integer,
    PlatformId,
    Price,
    Seconds,
    Slug,
    Table,
    Text,
)

_BACKLOG_LIMIT = 20


class SessionSettings(Table):
    """Which messages share a conversation, and how long conversations are kept."""

    dm_scope: DmScope = Field(
        default=DmScope.PER_CHANNEL_PEER, description="Which direct messages share a conversation."
    )
    group_scope: GroupScope = Field(
        default=GroupScope.SHARED, description="Whether a group has one conversation (shared) or one per sender."
    )
    identity_links: dict[Slug, tuple[PlatformId, ...]] = Field(
        default_factory=dict,
        description='The ids of one person on several platforms, like ["telegram:1", "discord:2"].',
    )
    recall_linked: Flag = Field(
        default=False,
        description="Whether the agent's recall in a direct chat also finds what the same person has said on other "
        "channels, by identity_links.",
    )
    max_messages: Integer = Field(
        default=50, ge=1, description="How many messages before the current turn the model sees."
    )
    context_messages: Integer | None = Field(
        default=None, ge=1, description="A lower limit than max_messages on what the model sees. Default: none."
    )
    context_chars: Integer | None = Field(
        default=None, ge=1, description="How many characters of each earlier message the model sees. Default: all."
    )
    compaction: Flag = Field(
        default=True,
        description="Whether a long conversation is summarised before its start no longer fits the model's context.",
    )
    title_model: Text | None = Field(
        default=None,
        description="The model that writes the title of a session after its first answer, as provider/model. Default: "
        "the title is the start of the first message.",
    )
    backlog_limit: Integer = Field(
        default=_BACKLOG_LIMIT,
        description="How many sessions with messages each scope lists; the least recently used are archived.",
    )
    ttl_days: Integer = Field(
        default=30,
        ge=0,
        le=100 * 365,
        description="After how many days without use a session is moved to the archive; 0 means never.",
    )
    archive_to_memory: Flag = Field(
        default=True,
        description="Whether a model notes in the memory of a scope what is worth keeping of a session that has ended.",
    )
    archive_days: Integer = Field(
        default=0,
        ge=0,
        le=100 * 365,
        description="After how many days in the archive a session is deleted for good; 0 means never.",
    )
    idle_minutes: Integer = Field(
        default=0,
        ge=0,
        le=100 * 365 * 1440,
        description="After how many minutes without a message a session ends; 0 means never.",
    )

    @field_validator("identity_links")
    @classmethod
    def _check_ids_belong_to_one_person(cls, links: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        names: dict[str, str] = {}
        for name, ids in links.items():
            for linked in ids:
                if linked.partition(":")[0] in PROGRAM_CHANNELS | {WEBHOOK_CHANNEL}:
                    raise InvalidValue(f"{linked} is a program, not a person", "remove it")
                if names.setdefault(linked, name) != name:
                    raise InvalidValue(f"{linked} is listed for both `{names[linked]}` and `{name}`", "remove one")
        return links

    @field_validator("backlog_limit", mode="before")
    @classmethod
    def _replace_if_unusable(cls, limit: object, info: ValidationInfo) -> int:
        fault = "is not a whole number"
        if isinstance(limit, int) and not isinstance(limit, bool):
            if limit >= 1:
                return limit
            fault = "is below 1"
        if context := context_of(info):
            context.warn(f"session.backlog_limit {fault}; {_BACKLOG_LIMIT} is used instead")
        return _BACKLOG_LIMIT


class LimitSettings(Table):
    """Limits on the use of models."""

    tokens_per_user_per_day: Integer = Field(
        default=10_000_000, ge=0, description="Input and output tokens per person and day (UTC); 0 means no limit."
    )
    tokens_per_turn: Integer = Field(
        default=3_000_000, ge=0, description="Input and output tokens per answer, all steps; 0 means no limit."
    )
    schedules_per_chat: Integer = Field(
        default=50, ge=0, le=1_000, description="How many schedules people and agents may make in one chat."
    )
    schedule_interval: Seconds = Field(
        default=60.0, ge=1, description="The fewest seconds between two runs of a schedule that people and agents make."
    )


class MemorySettings(Table):
    """What is kept of conversations for later ones."""

    prompt_chars: Integer = Field(
        default=2_000, ge=0, le=50_000, description="How many characters of the memory the model sees; 0 means none."
    )
    model: Text | None = Field(
        default=None,
        description='The model that archives sessions into memory, as "provider/model". Default: that of their agent.',
    )
    tokens_per_day: Integer = Field(
        default=500_000,
        ge=0,
        description="Input and output tokens for archiving sessions per day (UTC); 0 means no limit.",
    )
    cost_per_day: Price | None = Field(
        default=None,
        gt=0,
        description="What archiving sessions may cost per day (UTC), in the currency of the prices. Default: no limit.",
    )


class ApiSettings(Table):
    """The HTTP API for programs."""

    max_active_sessions: Integer = Field(
        default=5, ge=1, le=100_000, description="How many sessions that programs have started may be active at once."
    )
    idle_minutes: Integer = Field(
        default=30,
        ge=0,
        le=100 * 365 * 1440,
        description="After how many minutes without a prompt or an update of the agent a session of a program is "
        "completed; 0 means never.",
    )
    rate_limit: Integer = Field(
        default=600, ge=0, description="How many requests one token may send per minute; 0 means no limit."
    )

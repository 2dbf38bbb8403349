"""Conversations, and what people may use."""

from pydantic import Field, ValidationInfo, field_validator

from config.errors import Mistake
from config.secrets import source_of
from config.types import DmScope, Flag, GroupScope, PlatformId, Slug, Table, Whole

_BACKLOG_LIMIT = 20


class SessionSettings(Table):
    """Which messages share a conversation, and how long conversations are kept."""

    dm_scope: DmScope = Field(
        default=DmScope.PER_CHANNEL_PEER, description="Which direct messages share a conversation."
    )
    group_scope: GroupScope = Field(
        default=GroupScope.SHARED, description="Whether a group has one conversation or one for each sender."
    )
    identity_links: dict[Slug, tuple[PlatformId, ...]] = Field(
        default_factory=dict,
        description='The ids of one person on several platforms, like ["telegram:1", "discord:2"].',
    )
    max_messages: Whole = Field(
        default=50, ge=1, description="How many messages before the current turn the model sees."
    )
    context_messages: Whole | None = Field(default=None, ge=1, description="Narrows max_messages further, when given.")
    context_chars: Whole | None = Field(
        default=None, ge=1, description="How many characters of each earlier message the model sees, when given."
    )
    compaction: Flag = Field(
        default=True,
        description="Whether long conversations are summed up before the model loses sight of their start.",
    )
    backlog_limit: Whole = Field(
        default=_BACKLOG_LIMIT, description="How many sessions each scope keeps; the least recently used go first."
    )
    ttl_days: Whole = Field(
        default=30, ge=0, le=100 * 365, description="Days after which an untouched session is removed; 0: never."
    )
    idle_minutes: Whole = Field(
        default=0, ge=0, le=100 * 365 * 1440, description="Minutes after which an idle session ends; 0: never."
    )

    @field_validator("identity_links")
    @classmethod
    def _one_name_each(cls, links: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        named: dict[str, str] = {}
        for name, ids in links.items():
            for linked in ids:
                if named.setdefault(linked, name) != name:
                    raise Mistake(f"{linked} is under both `{named[linked]}` and `{name}`", "keep it under one of them")
        return links

    @field_validator("backlog_limit")
    @classmethod
    def _at_least_one(cls, limit: int, info: ValidationInfo) -> int:
        if limit >= 1:
            return limit
        if source := source_of(info):
            source.warn(f"session.backlog_limit is below 1; {_BACKLOG_LIMIT} is used instead")
        return _BACKLOG_LIMIT


class LimitSettings(Table):
    """What people may use of the models."""

    tokens_per_user_per_day: Whole = Field(
        default=10_000_000, ge=0, description="Tokens read and written for one person on a day (UTC); 0: no limit."
    )
    tokens_per_turn: Whole = Field(
        default=3_000_000, ge=0, description="Tokens read and written for one answer, all its steps; 0: no limit."
    )

"""Chat platforms, and which agent answers where."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from config.errors import Mistake
from config.secrets import Secret
from config.types import BusyMode, DmPolicy, Flag, GroupPolicy, Id, Options, Slug, Table, Url, WaitingSign, Whole

_DEFAULT_ACCOUNT = "default"


class AccountSettings(Table):
    """One bot identity on a channel. What it leaves out is as the channel says."""

    enabled: Flag = Field(default=True, description="Whether it is started.")
    token: Secret | None = Field(default=None, description="The bot's token; better a reference like env:NAME.")
    api_base: Url | None = Field(default=None, description="The platform's API, when it is not the official one.")
    dm_policy: DmPolicy = Field(
        default=DmPolicy.PAIRING,
        description="Who may write directly: those in allow and whoever the owner lets in by a code (pairing), those "
        "in allow alone, or everybody.",
    )
    allow: tuple[Id, ...] = Field(default=(), description="The ids of those who may always write.")
    group_policy: GroupPolicy = Field(
        default=GroupPolicy.ALLOWLIST, description="In which groups it answers: those in group_allow, all, or none."
    )
    group_allow: tuple[Id, ...] = Field(
        default=(), description="The ids of the groups it answers in; a server's id stands for its channels."
    )
    require_mention: Flag = Field(default=True, description="Whether it answers in groups only when it is named.")
    rate_limit: Whole = Field(
        default=60, ge=0, description="How many messages a minute one person may send, but for owners; 0: any number."
    )
    busy: BusyMode = Field(
        default=BusyMode.FOLLOWUP,
        description="What becomes of a message that comes in during a turn: answered after it, together with "
        "the others that came, at once, instead of what runs, or by that turn itself, from its next step on.",
    )
    waiting_sign: WaitingSign = Field(
        default=WaitingSign.REACTION,
        description="How somebody learns that a message has to wait: by a reaction where the channel can, by a note, "
        "or not at all.",
    )
    options: Options = Field(
        default_factory=dict, description="What only this channel understands; references become secrets here too."
    )

    @field_validator("allow", "group_allow")
    @classmethod
    def _are_ids(cls, ids: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if any(not each.strip(" *") for each in ids):
            policy = "dm_policy" if info.field_name == "allow" else "group_policy"
            raise Mistake("holds ids only, and `*` is none", f'to let everybody in, set {policy} = "open"')
        return ids


class ChannelSettings(AccountSettings):
    """One chat platform."""

    accounts: dict[Slug, AccountSettings] = Field(
        default_factory=dict, description="Several bot identities on this platform, each with a name."
    )

    @field_validator("accounts")
    @classmethod
    def _fall_back_on_the_channel(
        cls, accounts: dict[str, AccountSettings], info: ValidationInfo
    ) -> dict[str, AccountSettings]:
        return {name: _filled(account, info.data) for name, account in accounts.items()}

    def account_names(self) -> tuple[str, ...]:
        """Name the identities to run: those in `accounts`, and `default` where it has a token or is the only one."""
        own = () if self.accounts and (self.token is None or _DEFAULT_ACCOUNT in self.accounts) else (_DEFAULT_ACCOUNT,)
        return (*own, *self.accounts)

    def for_account(self, name: str) -> "ChannelSettings":
        """Return the settings as one identity sees them, without the others."""
        if name in self.accounts:
            return ChannelSettings.model_construct(accounts={}, **dict(self.accounts[name]))
        return self.model_copy(update={"accounts": {}})


def _filled(account: AccountSettings, channel: Mapping[str, Any]) -> AccountSettings:
    missing = {key: value for key, value in channel.items() if key not in account.model_fields_set}
    return account.model_copy(update=missing)


class Binding(Table):
    """Sends what matches all the given keys to an agent; the most specific binding wins."""

    agent: Slug = Field(description="The agent that answers.")
    channel: Slug | None = Field(default=None, description="The channel it came by.")
    account: Slug | None = Field(default=None, description="The bot identity it was written to.")
    guild: Id | None = Field(default=None, description="The server or workspace it was written in.")
    peer: Id | None = Field(default=None, description="The chat it was written in.")
    thread: Id | None = Field(default=None, description="The thread or topic it was written in.")

    @model_validator(mode="after")
    def _matches_something(self) -> Self:
        if not any(self.match):
            raise Mistake("matches nothing", "give at least one of channel, account, guild, peer or thread")
        return self

    @property
    def match(self) -> tuple[str | None, ...]:
        """What a message must have: channel, account, guild, peer, thread."""
        return (self.channel, self.account, self.guild, self.peer, self.thread)

"""Chat platforms, and which agent answers where."""

from typing import Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from config.errors import InvalidValue
from config.secrets import Secret
from config.settings.webhooks import HookSettings
from config.types import BusyMode, DmPolicy, Flag, GroupPolicy, Id, Integer, Options, Slug, Table, Url, WaitingSign

_DEFAULT_ACCOUNT = "default"


class AccountSettings(Table):
    """One bot account on a channel. Keys that are not set are taken from the channel."""

    enabled: Flag = Field(default=True, description="Whether to start it.")
    token: Secret | None = Field(default=None, description="The bot's token; preferably a reference like env:NAME.")
    api_base: Url | None = Field(default=None, description="The URL of the platform's API. Default: the official one.")
    dm_policy: DmPolicy = Field(
        default=DmPolicy.PAIRING,
        description="Who may send direct messages: people in allow and those whom the owner approves by a code "
        "(pairing), only people in allow (allowlist), or everyone (open).",
    )
    allow: tuple[Id, ...] = Field(default=(), description="The ids of people who may always write.")
    group_policy: GroupPolicy = Field(
        default=GroupPolicy.ALLOWLIST,
        description="In which groups it answers: those in group_allow (allowlist), all (open), or none (off).",
    )
    group_allow: tuple[Id, ...] = Field(
        default=(), description="The ids of groups it answers in; the id of a server includes all its channels."
    )
    require_mention: Flag = Field(default=True, description="Whether it answers in groups only when mentioned.")
    rate_limit: Integer = Field(
        default=60,
        ge=0,
        description="How many messages one person may send per minute; 0 means no limit. Owners have none.",
    )
    busy: BusyMode = Field(
        default=BusyMode.FOLLOWUP,
        description="How a message that arrives during a turn is handled: answered after it (followup), answered "
        "together with other waiting messages (collect), answered at once by stopping the turn (interrupt), or passed "
        "to the running turn (steer).",
    )
    waiting_sign: WaitingSign = Field(
        default=WaitingSign.REACTION,
        description="How the sender learns that a message is queued: a reaction where the channel supports it, a note, "
        "or not at all (off).",
    )
    max_reply_parts: Integer | None = Field(
        default=None, ge=0, description="How many messages an answer may take. Default: gateway.max_reply_parts."
    )
    options: Options = Field(
        default_factory=dict, description="Options specific to this channel; they may contain references to secrets."
    )

    @field_validator("allow", "group_allow")
    @classmethod
    def _check_ids(cls, ids: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        # Other programs read `*` as everyone. A list that means everyone must not happen by accident.
        if any(not each.strip(" *") for each in ids):
            policy = "dm_policy" if info.field_name == "allow" else "group_policy"
            raise InvalidValue(
                "must contain ids only, and `*` is not an id", f'to allow everyone, set {policy} = "open"'
            )
        return ids


class ChannelSettings(AccountSettings):
    """One chat platform."""

    # After the fields that accounts inherit, so that its validator sees them.
    accounts: dict[Slug, AccountSettings] = Field(
        default_factory=dict, description="Several bot accounts on this platform, by name."
    )
    hooks: dict[Slug, HookSettings] = Field(
        default_factory=dict, description="The webhooks of the channel `webhook`, by name."
    )

    @field_validator("accounts")
    @classmethod
    def _inherit_from_channel(
        cls, accounts: dict[str, AccountSettings], info: ValidationInfo
    ) -> dict[str, AccountSettings]:
        return {
            name: account.model_copy(
                update={key: value for key, value in info.data.items() if key not in account.model_fields_set}
            )
            for name, account in accounts.items()
        }

    def account_names(self) -> tuple[str, ...]:
        """Return the accounts to run: those in `accounts`, and `default` if it has a token or is the only one."""
        own = () if self.accounts and (self.token is None or _DEFAULT_ACCOUNT in self.accounts) else (_DEFAULT_ACCOUNT,)
        return (*own, *self.accounts)

    def for_account(self, name: str) -> "ChannelSettings":
        """Return the settings of one account, without the others."""
        if name in self.accounts:
            # Not validated again: the values come from a validated account.
            return ChannelSettings.model_construct(accounts={}, hooks={}, **dict(self.accounts[name]))
        return self.model_copy(update={"accounts": {}})


class Binding(Table):
    """Routes messages that match all given keys to an agent. The most specific binding wins."""

    agent: Slug = Field(description="The agent that answers.")
    channel: Slug | None = Field(default=None, description="The channel of the message.")
    account: Slug | None = Field(default=None, description="The bot account that received the message.")
    guild: Id | None = Field(default=None, description="The server or workspace of the message.")
    peer: Id | None = Field(default=None, description="The chat of the message.")
    thread: Id | None = Field(default=None, description="The thread or topic of the message.")

    @model_validator(mode="after")
    def _check_matches_something(self) -> Self:
        if not any(self.match):
            raise InvalidValue("has nothing to match", "set at least one of channel, account, guild, peer or thread")
        return self

    @property
    def match(self) -> tuple[str | None, ...]:
        """The required channel, account, guild, peer and thread of a message; None matches any."""
        return (self.channel, self.account, self.guild, self.peer, self.thread)

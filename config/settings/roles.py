"""Roles: what people, chats and programs may do, and who has which role."""

from pydantic import Field, field_validator

from config.errors import InvalidValue
from config.types import PROGRAM_CHANNELS, WEBHOOK_CHANNEL, ApprovalRight, Flag, Integer, PlatformId, Price, Table, Text

OWNER_ROLE, MEMBER_ROLE, GUEST_ROLE = BUILT_IN_ROLES = ("owner", "member", "guest")
"""The roles that always exist."""
NOT_GRANTED = ("pair",)
"""The first words of commands that no role can grant, because they decide who has access and who has which role."""


class RoleSettings(Table):
    """What the people with one role may do. A key that is not set leaves everything as it is without roles."""

    people: tuple[PlatformId, ...] = Field(
        default=(), description='The ids of the people who have the role, like "telegram:123456".'
    )
    chats: tuple[PlatformId, ...] = Field(
        default=(),
        description="The chats in which everyone has the role who has no role of their own; the id of a server "
        "includes all its channels.",
    )
    commands: tuple[Text, ...] | None = Field(
        default=None,
        description="The chat commands that they may use; * matches anything. A command for owners has to be named. "
        "Default: all that are not for owners.",
    )
    agents: tuple[Text, ...] | None = Field(
        default=None,
        description="The agents that answer them; * matches anything. They may choose those that are named. Default: "
        "the agents of their chats, and those that are choosable.",
    )
    models: tuple[Text, ...] | None = Field(
        default=None,
        description='The models that answer them, like "gpt-5" or "local/*". Default: all models of their agents.',
    )
    tools: tuple[Text, ...] | None = Field(
        default=None,
        description="The tools of the agents that may run for them; * matches anything. Default: all.",
    )
    ask: tuple[Text, ...] = Field(
        default=(),
        description="The tools that need approval before they run for them, besides agents.<name>.ask; * matches "
        "anything.",
    )
    workspaces: tuple[Text, ...] | None = Field(
        default=None,
        description="The ids of the repos that agents may use for them; * matches anything. Default: those of their "
        "agents.",
    )
    approve: ApprovalRight = Field(
        default=ApprovalRight.OWN,
        description='Which tool calls they may approve: "none", their "own", or all in the "chat" they write in.',
    )
    moderate: Flag = Field(
        default=False,
        description="Whether they may delete, clear and undo in conversations that several people share, and choose "
        "agent and model there.",
    )
    tokens_per_day: Integer | None = Field(
        default=None,
        ge=0,
        description="Input and output tokens per person and day (UTC), instead of limits.tokens_per_user_per_day; 0 "
        "means no limit.",
    )
    tokens_per_turn: Integer | None = Field(
        default=None,
        ge=0,
        description="Input and output tokens per answer, instead of limits.tokens_per_turn; 0 means no limit.",
    )
    cost_per_day: Price | None = Field(
        default=None,
        gt=0,
        description="What their use of models may cost per person and day (UTC), in the currency of the prices. "
        "Default: no limit.",
    )

    @field_validator("people", "chats")
    @classmethod
    def _check_ids_are_of_platforms(cls, ids: tuple[str, ...]) -> tuple[str, ...]:
        for each in ids:
            channel = each.partition(":")[0]
            if channel in PROGRAM_CHANNELS:
                raise InvalidValue(f"{each} is a program", "give its token a role: gatehouse token create --role")
            if channel == WEBHOOK_CHANNEL:
                raise InvalidValue(f"{each} is a webhook", "set channels.webhook.hooks.<name>.role")
        return ids

    @field_validator("commands")
    @classmethod
    def _check_commands_can_be_granted(cls, commands: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for each in commands or ():
            if first_word(each) in NOT_GRANTED:
                raise InvalidValue(
                    f"`{each}` cannot be granted: only owners decide who has access",
                    "remove it, or make the person an owner in gateway.owners",
                )
        return commands


def first_word(command: str) -> str:
    """Return the first word of a command or of a pattern, without its slash and a wildcard at its end."""
    return command.lower().removeprefix("/").split(" ")[0].rstrip("*")

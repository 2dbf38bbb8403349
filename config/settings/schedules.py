"""Schedules: prompts that the gateway sends by itself, and texts that it delivers."""

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator, model_validator

from config.errors import InvalidValue
from config.settings.webhooks import Pointer
from config.types import (
    Flag,
    HookChatKind,
    Id,
    Integer,
    MissedRun,
    PlatformId,
    Price,
    ScheduleSession,
    Seconds,
    Slug,
    Table,
    Text,
    TimeZoneName,
    Url,
)

CronLine = Annotated[str, Field(pattern=r"^\S+(\s+\S+){4}$")]
MAX_JITTER = 3_600


class CheckSettings(Table):
    """What is looked at before each run. It costs nothing, and decides whether the model is asked."""

    command: Text | None = Field(
        default=None,
        description="A command for the sandbox. The model is asked if it exits with 0, and not if it exits with 1.",
    )
    url: Url | None = Field(
        default=None,
        validate_default=True,
        description="An address of the public web. The model is asked if its content has changed.",
    )
    pointer: Pointer = Field(
        default="", description="A JSON Pointer: only this part of the content at the address counts. Default: all."
    )
    on_change: Flag = Field(
        default=False, description="Whether the output of the command must have changed, too, since the last run."
    )
    quote: Flag = Field(default=True, description="Whether the model reads the output, as quoted data.")

    @field_validator("url")
    @classmethod
    def _check_one(cls, url: str | None, info: ValidationInfo) -> str | None:
        if "command" in info.data and (url is None) == (info.data["command"] is None):
            raise InvalidValue("or command must be set, and not both", "keep one of the two")
        return url


class ScheduleSettings(Table):
    """One schedule: when it runs, what it asks or delivers, and in which chat."""

    name: Slug = Field(description="The name. A schedule that changes keeps its history as long as it has this name.")
    cron: CronLine | None = Field(default=None, description='When it runs: a cron line, like "0 8 * * 1-5".')
    every: Seconds | None = Field(default=None, ge=1, description="When it runs: every so many seconds.")
    at: datetime | None = Field(
        default=None, description='When it runs, once: a time like "2027-05-01T18:00", in the time zone of `zone`.'
    )
    zone: TimeZoneName | None = Field(default=None, description="The time zone. Default: gateway.timezone.")
    chat: PlatformId = Field(
        description="The chat that gets the answers: a channel and the id of the chat or person on it, like "
        '"telegram:123456".'
    )
    chat_kind: HookChatKind = Field(
        default=HookChatKind.DIRECT,
        description='What the chat is: a "direct" chat, a "group", or a "channel" of a server.',
    )
    chat_thread: Id | None = Field(default=None, description="The thread or topic of the chat. Default: none.")
    chat_account: Slug = Field(default="default", description="The bot account that writes into the chat.")
    prompt: Text | None = Field(default=None, description="What the agent is asked.")
    deliver_only: Flag = Field(
        default=False,
        description="Whether the prompt, or else the output of the check, is sent as it is. Asks no model.",
    )
    agent: Slug | None = Field(default=None, description="The agent that answers. Default: that of the chat.")
    session: ScheduleSession = Field(
        default=ScheduleSession.OWN,
        description='Where the agent answers: in the schedule\'s "own" session, or in the active one of the "chat".',
    )
    role: Slug = Field(default="owner", description="The role of its runs: a table in [roles].")
    missed: MissedRun = Field(
        default=MissedRun.ONCE,
        description='After the gateway was down at a time, a schedule runs "once", or only at its next time ("skip").',
    )
    jitter: Seconds = Field(
        default=0.0, ge=0, le=MAX_JITTER, description="How many seconds a run may be late, so that not all run at once."
    )
    tokens_per_run: Integer = Field(
        default=0, ge=0, description="Input and output tokens per run; 0 means no limit of its own."
    )
    tokens_per_day: Integer = Field(
        default=0, ge=0, description="Input and output tokens per day (UTC); 0 means no limit of its own."
    )
    cost_per_day: Price | None = Field(
        default=None, gt=0, description="What its runs may cost per day (UTC), in the currency of the prices."
    )
    check: CheckSettings | None = Field(
        default=None, description="What is looked at before each run. Default: nothing."
    )

    @model_validator(mode="after")
    def _check_combinations(self) -> "ScheduleSettings":
        if sum(each is not None for each in (self.cron, self.every, self.at)) != 1:
            raise InvalidValue("must have one of cron, every and at", "set exactly one of them")
        if self.prompt is None and not (self.deliver_only and self.check is not None):
            raise InvalidValue("must have a prompt", "only deliver_only with a check can do without")
        if self.session is ScheduleSession.CHAT and self.agent is not None:
            raise InvalidValue(
                "has an agent, and the session of the chat has its own", 'remove agent, or set session = "own"'
            )
        if self.every is not None and self.jitter > self.every / 2:
            raise InvalidValue("has a jitter of more than half of its interval", "choose a smaller jitter")
        return self

    @field_validator("cron")
    @classmethod
    def _check_cron(cls, cron: str | None) -> str | None:
        if cron is None:
            return None
        # Imported here because few configurations have schedules.
        from cronsim import CronSim, CronSimError  # noqa: PLC0415

        try:
            happens = next(CronSim(cron, datetime.now(UTC)), None) is not None
        except CronSimError as mistake:
            raise InvalidValue(f"is not a cron line: {str(mistake).lower()}", 'write it like "0 8 * * 1-5"') from None
        if not happens:
            raise InvalidValue("never happens", 'write it like "0 8 * * 1-5"')
        return cron

    @field_validator("prompt")
    @classmethod
    def _check_not_blank(cls, prompt: str | None) -> str | None:
        if prompt is not None and not re.search(r"\S", prompt):
            raise InvalidValue("must not be blank")
        return prompt

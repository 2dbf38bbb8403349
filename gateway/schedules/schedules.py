"""Makes, changes and lists schedules."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from hashlib import blake2b
from uuid import uuid4

import structlog
from msgspec.structs import replace

from config.types import PROGRAM_CHANNELS
from gateway.access.role_table import Role
from gateway.access.roles import role_of
from gateway.access.rules import Live, may_talk
from gateway.contract import Inbound
from gateway.errors import Refused
from gateway.job import Job
from gateway.scheduler.recurrence import (
    check_recurrence,
    describe_recurrence,
    following,
    format_time,
    parse_recurrence,
    zone_of,
)
from gateway.spool import (
    CONFIGURED,
    AddSchedule,
    ChangeSchedule,
    EndSchedule,
    NumberTaken,
    Operation,
    PauseSchedule,
    Recurrence,
    ResumeSchedule,
    RunSchedule,
    ScheduleContent,
    ScheduleRow,
    ScheduleState,
    Spool,
    SpoolUnavailable,
    TooMany,
)
from gateway.text import clean, excerpt
from gateway.text.plain import without_code

log = structlog.get_logger()

ADD = "schedule add"
"""The command whose right a person needs to make schedules, and at each run of those that they have made."""
MAX_TOTAL = 20_000
MAX_CHARS = 8_000
MAX_JITTER = 3_600.0
TITLE_WIDTH = 60


class Action(StrEnum):
    """What people do with a schedule that exists."""

    PAUSE = "pause"
    RESUME = "resume"
    RUN = "run"
    DELETE = "delete"


class Schedules:
    """`changed` wakes the scheduler, because a schedule was added or is due at another time."""

    def __init__(
        self,
        live: Live,
        spool: Spool,
        changed: asyncio.Event,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._live = live
        self._spool = spool
        self.changed = changed
        self.now = now

    @property
    def zone(self) -> tzinfo:
        """The time zone of times that name none."""
        return self._live.settings.gateway.zone

    def role_of_maker(self, about: ScheduleContent) -> Role:
        return role_of(self._live, about.address, about.maker, about.guild)

    def find_refusal(self, about: ScheduleContent) -> str:
        """Return why the maker of a schedule has no right to it, or an empty string. Rights may change at any time."""
        if not may_talk(self._live, about.address, about.maker, about.guild):
            return "the person or program that made it no longer has access"
        role = self.role_of_maker(about)
        if not about.maker.schedule and not role.may_use(ADD, is_for_owners=True):
            return f"people with the role {role.name} can't make schedules"
        if about.agent and not role.is_answered_by(about.agent):
            return f"the agent {about.agent} doesn't answer people with the role {role.name}"
        return ""

    def check(self, about: ScheduleContent) -> ScheduleContent:
        """Return what is stored for a new schedule. Raises `Refused` if it cannot be made."""
        if refusal := self.find_refusal(about):
            raise Refused(f"That schedule can't be made: {refusal}.")
        settings, zone = self._live.settings, self.zone
        about = replace(about, prompt=clean(about.prompt).strip())
        if not about.prompt and not (about.delivers and about.check is not None):
            raise Refused("What shall I do then? Write it after the time.")
        if len(about.prompt) > MAX_CHARS:
            raise Refused(f"That prompt has {len(about.prompt):,} characters, and the limit is {MAX_CHARS:,}.")
        if not 0 <= about.jitter <= MAX_JITTER:
            raise Refused("A jitter can be an hour at most.")
        if min(about.tokens_per_run, about.tokens_per_day, about.cost_per_day) < 0:
            raise Refused("A budget can't be less than 0.")
        if about.agent:
            self._check_agent(about)
        if about.check is not None and about.check.command:
            self._check_shell(about)
        zone = zone_of(about.when, zone)
        interval = settings.limits.schedule_interval
        try:
            check_recurrence(about.when, now=self.now(), zone=zone, min_interval=interval, jitter=about.jitter)
        except Refused as reason:
            raise Refused(f"{_sentence(str(reason))}. Choose other times.") from reason
        return about

    def _check_agent(self, about: ScheduleContent) -> None:
        agents = self._live.settings.agents
        if about.agent not in agents:
            raise Refused(f"There is no agent {excerpt(about.agent, 40)}. /agent lists them.")
        if not about.is_apart:
            raise Refused("This session has its agent already. A schedule with an agent needs a session of its own.")
        if not self.role_of_maker(about).may_choose_agent(about.agent, is_usual=agents[about.agent].choosable):
            raise Refused(f"The agent {about.agent} can't be chosen here. /agent lists those that can.")

    def _check_shell(self, about: ScheduleContent) -> None:
        tools = self.role_of_maker(about).settings.tools
        if not self._live.settings.tools.shell.enabled:
            raise Refused("A check with a command needs the sandbox. The bot's operator can set tools.shell.enabled.")
        if tools is not None and "shell" not in tools and "*" not in tools:
            raise Refused("A check with a command is not for you: your role has no shell.")

    async def prepare(self, about: ScheduleContent, scope: str) -> ScheduleRow:
        """Return a new schedule as `store` stores it. Raises `Refused` if it cannot be made."""
        about = self.check(about)
        planned = following(about.when, self.now(), self.zone)
        if planned is None:
            raise Refused("That time has passed. Choose a later one.")
        numbers = [row.number for row in await self._spool.schedules(scope, ended=True)]
        number = max(numbers, default=0) + 1
        row = ScheduleRow(id=uuid4().hex[:16], scope=scope, number=number, planned_at=planned, about=about)
        return replace(row, due_at=late_by_jitter(row, planned))

    async def store(self, row: ScheduleRow, also: Sequence[Operation] = ()) -> None:
        """Store a new schedule, in one commit with `also`. Raises `Refused`, or the errors of the spool."""
        limit = self._live.settings.limits.schedules_per_chat
        new = AddSchedule(
            id=row.id,
            scope=row.scope,
            number=row.number,
            due_at=row.due_at,
            planned_at=row.planned_at,
            about=row.about,
            max_per_scope=limit,
            max_total=MAX_TOTAL,
        )
        try:
            await self._spool.commit(new, *also, scope=row.scope)
        except TooMany as full:
            raise Refused(
                f"There are too many schedules: the limit is {limit} in a chat. Delete some with /schedules."
            ) from full
        except NumberTaken as taken:
            raise Refused("Another schedule was made in the same moment. Please try again.") from taken
        self.changed.set()
        log.info("schedule_added", schedule=row.id, cron=row.about.when.cron, every=row.about.when.every)

    async def make(self, job: Job, prompt: str, when: str) -> str:
        """Make a schedule for the person whose message an agent answers, and return the confirmation.

        Raises `Refused` with the reason.
        """
        inbound = job.inbound
        if inbound.scheduled is not None:
            raise Refused("A schedule can't make schedules.")
        if inbound.sender.is_verified or inbound.address.channel in PROGRAM_CHANNELS:
            raise Refused("A program asked for it. Programs make schedules with the API.")
        try:
            row = await self.prepare(self.content_of(inbound, prompt, self.parse(when)), job.scope)
            await self.store(row)
        except SpoolUnavailable as error:
            raise Refused("Nothing can be stored at the moment. Try again later.") from error
        return self.confirm(row)

    def parse(self, when: str, zone_name: str = "") -> Recurrence:
        """Parse how people write when a schedule runs. Raises `Refused`."""
        try:
            zone = zone_of(Recurrence(zone=zone_name), self.zone)
        except Refused as reason:
            raise Refused(f"{_sentence(str(reason))}. Write it like Europe/Berlin.") from reason
        interval = self._live.settings.limits.schedule_interval
        try:
            return parse_recurrence(when, now=self.now(), zone=zone, zone_name=zone_name, min_interval=interval)
        except Refused as reason:
            raise Refused(f"{_sentence(str(reason))}. Choose other times.") from reason

    def content_of(self, inbound: Inbound, prompt: str, when: Recurrence) -> ScheduleContent:
        """Return a schedule for the chat of a message, made by its sender."""
        return ScheduleContent(
            address=inbound.address,
            maker=inbound.sender,
            guild=inbound.guild,
            prompt=prompt,
            when=when,
            created_at=self.now(),
        )

    def confirm(self, row: ScheduleRow) -> str:
        """Return what a person is told about a new schedule."""
        first = "" if row.due_at is None else f" It runs on {format_time(row.due_at, self.zone_of(row))}"
        again = "" if row.about.when.at is not None else f", then {describe_recurrence(row.about.when, self.zone)}"
        return f"Schedule {row.number} is set.{first}{again}. /schedules lists all."

    def zone_of(self, row: ScheduleRow) -> tzinfo:
        """Return the time zone in which people think of a schedule. One that has vanished is replaced."""
        try:
            return zone_of(row.about.when, self.zone)
        except Refused:
            return self.zone

    async def of_scope(self, scope: str, *, ended: bool = False) -> list[ScheduleRow]:
        """Return the schedules of a scope, by number."""
        found = await self._spool.schedules(scope, ended=ended)
        return sorted((row for row in found if row.state is not ScheduleState.DELETED), key=lambda row: row.number)

    def change(self, row: ScheduleRow, action: Action) -> Operation:
        """Return the operation that does something with a schedule. Raises `Refused` if that cannot be done now."""
        what = f"Schedule {row.number}"
        if row.state in {ScheduleState.ENDED, ScheduleState.DELETED}:
            raise Refused(f"{what} has ended.")
        match action:
            case Action.PAUSE:
                if row.state is ScheduleState.PAUSED:
                    raise Refused(f"{what} is paused already. /schedule resume {row.number} lets it go on.")
                return PauseSchedule(id=row.id)
            case Action.RESUME:
                return self._resume(row)
            case Action.RUN:
                return RunSchedule(id=row.id, at=self.now())
            case Action.DELETE:
                if row.id.startswith(CONFIGURED):
                    raise Refused(
                        f"{what} comes from the configuration. Remove it there, or pause it with "
                        f"/schedule pause {row.number}."
                    )
                return EndSchedule(id=row.id, state=ScheduleState.DELETED, at=self.now())

    def _resume(self, row: ScheduleRow) -> Operation:
        what = f"Schedule {row.number}"
        if row.state is not ScheduleState.PAUSED:
            raise Refused(f"{what} is not paused.")
        if refusal := self.find_refusal(row.about):
            raise Refused(f"{what} can't go on: {refusal}.")
        planned = following(row.about.when, self.now(), self.zone)
        if planned is None:
            raise Refused(f"{what} has no time left. Delete it with /schedule delete {row.number}.")
        return ResumeSchedule(id=row.id, due_at=late_by_jitter(row, planned), planned_at=planned)

    async def replace(self, row: ScheduleRow, about: ScheduleContent) -> None:
        """Change what a schedule does. `about` was checked. Raises the errors of the spool."""
        planned = following(about.when, self.now(), self.zone)
        due = None if planned is None else late_by_jitter(replace(row, about=about), planned)
        change = ChangeSchedule(id=row.id, scope=row.scope, about=about, due_at=due, planned_at=planned)
        await self._spool.commit(change, scope=row.scope)
        self.changed.set()
        log.info("schedule_changed", schedule=row.id, action="replace")

    async def apply(self, row: ScheduleRow, action: Action) -> ScheduleRow:
        """Do something with a schedule, and return it as it is then. Raises `Refused`, or the errors of the spool."""
        await self._spool.commit(self.change(row, action), scope=row.scope)
        self.changed.set()
        log.info("schedule_changed", schedule=row.id, action=action)
        return await self._spool.find_schedule(row.id) or row


def describe(row: ScheduleRow) -> str:
    """Return how a sentence names a schedule."""
    if row.id.startswith(CONFIGURED):
        return f"Schedule {row.number} ({row.id.removeprefix(CONFIGURED)})"
    title = excerpt(row.about.prompt, TITLE_WIDTH)
    return f"Schedule {row.number} ({title})" if title else f"Schedule {row.number}"


def late_by_jitter(row: ScheduleRow, planned: datetime) -> datetime:
    """Return when a schedule runs that is planned for a time. It is the same at each call."""
    if not row.about.jitter:
        return planned
    digest = blake2b(f"{row.id} {planned.timestamp()}".encode(), digest_size=4).digest()
    return planned + timedelta(seconds=row.about.jitter * int.from_bytes(digest) / 2**32)


def _sentence(reason: str) -> str:
    """Return a reason as the begin of a sentence for a chat, which shows no Markdown."""
    text = without_code(reason)
    return text[:1].upper() + text[1:]

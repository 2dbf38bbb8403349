"""The routes of the API for schedules. They act in the chats of people, so they need `admin`."""

from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus

from msgspec import UNSET
from msgspec.structs import replace

from gateway.access.rules import Live
from gateway.api import types as t
from gateway.api.operation import ApiCall, invalid
from gateway.api.programs import sender_of
from gateway.contract import Address, Inbound, PeerKind
from gateway.errors import Refused
from gateway.http.responses import HttpError
from gateway.routing import route
from gateway.scheduler.recurrence import describe_recurrence
from gateway.schedules import Schedules
from gateway.schedules.grammar import check_pointer
from gateway.schedules.schedules import Action
from gateway.sessions.keys import parse_key
from gateway.spool import (
    CONFIGURED,
    ScheduleCheck,
    ScheduleContent,
    ScheduleRow,
    ScheduleRun,
    ScheduleState,
    Spool,
    WrongState,
)

MAX_RUNS = 50
_CHANGED = "The schedule has changed in the meantime. Read it again."


class ScheduleApi:
    def __init__(self, live: Live, schedules: Schedules, spool: Spool) -> None:
        self._live = live
        self._schedules = schedules
        self._spool = spool

    async def list(self, call: ApiCall) -> t.ScheduleList:
        query = call.query_as(t.SchedulesQuery)
        rows = await self._spool.schedules(after=query.after, limit=query.limit)
        return t.ScheduleList(schedules=[describe_schedule(self._schedules, row) for row in rows])

    async def create(self, call: ApiCall) -> t.ScheduleInfo:
        body = call.body_as(t.NewScheduleBody)
        channel, _, peer = body.chat.partition(":")
        settings = self._live.settings.channels.get(channel)
        if settings is None:
            raise invalid(f"There is no channel `{channel}`. Write a chat like telegram:123456.")
        if body.chat_account not in (accounts := settings.account_names()):
            raise invalid(f"`{channel}` has no account `{body.chat_account}`. It has: {', '.join(accounts)}.")
        address = Address(
            channel=channel,
            kind=PeerKind(body.chat_kind),
            peer=peer,
            account=body.chat_account,
            thread=body.chat_thread,
        )
        maker = sender_of(call.caller)
        now = self._schedules.now()
        try:
            inbound = Inbound(address=address, sender=maker, event_id="", text="", sent_at=now)
            when = self._schedules.parse(body.when, body.zone)
            about = self._schedules.content_of(inbound, body.prompt, when)
            about = _with_changes(about, body)
            row = await self._schedules.prepare(about, route(self._live.settings, address, maker).scope)
            await self._schedules.store(row)
        except Refused as refusal:
            raise invalid(str(refusal)) from refusal
        return describe_schedule(self._schedules, row)

    async def get(self, call: ApiCall) -> t.ScheduleInfo:
        return describe_schedule(self._schedules, await self._find(call))

    async def change(self, call: ApiCall) -> t.ScheduleInfo:
        """Pause or resume a schedule, or change what it does."""
        body, row = call.body_as(t.ScheduleChanges), await self._find(call)
        changes = {name: value for name, value in _changed(body).items() if name != "paused"}
        try:
            if changes:
                await self._schedules.replace(row, self._changed(row, body))
                row = await self._find(call)
            if body.paused is not UNSET and body.paused != (row.state is ScheduleState.PAUSED):
                row = await self._apply(row, Action.PAUSE if body.paused else Action.RESUME)
        except WrongState as error:
            raise HttpError(HTTPStatus.CONFLICT, _CHANGED) from error
        return describe_schedule(self._schedules, row)

    def _changed(self, row: ScheduleRow, body: t.ScheduleChanges) -> ScheduleContent:
        if row.id.startswith(CONFIGURED):
            raise HttpError(HTTPStatus.CONFLICT, "This schedule comes from the configuration. Change it there.")
        about = row.about
        try:
            if body.when is not UNSET or body.zone is not UNSET:
                if body.when is UNSET:
                    raise invalid("A change of `zone` needs `when`, too.")
                about = replace(about, when=self._schedules.parse(body.when, body.zone or ""))
            if body.prompt is not UNSET:
                about = replace(about, prompt=body.prompt)
            return self._schedules.check(_with_changes(about, body))
        except Refused as refusal:
            raise invalid(str(refusal)) from refusal

    async def run(self, call: ApiCall) -> t.ScheduleInfo:
        return describe_schedule(self._schedules, await self._apply(await self._find(call), Action.RUN))

    async def runs(self, call: ApiCall) -> t.ScheduleRuns:
        row = await self._find(call, ended=True)
        runs = await self._spool.schedule_runs(row.id, limit=MAX_RUNS)
        return describe_runs(runs)

    async def delete(self, call: ApiCall) -> t.ScheduleInfo:
        return describe_schedule(self._schedules, await self._apply(await self._find(call), Action.DELETE))

    async def _apply(self, row: ScheduleRow, action: Action) -> ScheduleRow:
        try:
            return await self._schedules.apply(row, action)
        except WrongState as error:
            raise HttpError(HTTPStatus.CONFLICT, _CHANGED) from error

    async def _find(self, call: ApiCall, *, ended: bool = False) -> ScheduleRow:
        row = await self._spool.find_schedule(call.path("id"))
        is_gone = row is None or row.state is ScheduleState.DELETED
        if row is None or (is_gone and not ended) or (row.state is ScheduleState.ENDED and not ended):
            raise HttpError(HTTPStatus.NOT_FOUND, "There is no schedule with this id. GET /api/schedules lists them.")
        return row


def _changed(body: t.ScheduleChanges) -> dict[str, object]:
    """Return the fields that a request has."""
    return {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}


def _with_changes(about: ScheduleContent, body: t.NewScheduleBody | t.ScheduleChanges) -> ScheduleContent:
    """Return a schedule with the optional fields of a request. Raises `Refused`."""
    changes: dict[str, object] = {}
    fields = {
        "agent": "agent",
        "deliver_only": "delivers",
        "jitter": "jitter",
        "tokens_per_run": "tokens_per_run",
        "tokens_per_day": "tokens_per_day",
        "cost_per_day": "cost_per_day",
    }
    for name, field in fields.items():
        if (value := getattr(body, name)) is not UNSET:
            changes[field] = value
    if body.session is not UNSET:
        changes["is_apart"] = body.session == "own"
    if body.missed is not UNSET:
        changes["is_skipped_if_missed"] = body.missed == "skip"
    if body.check is not UNSET:
        changes["check"] = None if body.check is None else _check(body.check)
    return replace(about, **changes)


def _check(body: t.ScheduleCheckInfo) -> ScheduleCheck:
    if bool(body.command) == bool(body.url):
        raise Refused("A check has a command or a url, and not both.")
    check = ScheduleCheck(
        command=body.command, url=body.url, pointer=body.pointer, on_change=body.on_change, quotes=body.quote
    )
    check_pointer(check)
    return check


def describe_schedule(schedules: Schedules, row: ScheduleRow) -> t.ScheduleInfo:
    about, check, zone = row.about, row.about.check, schedules.zone_of(row)
    address, maker = about.address, about.maker
    return t.ScheduleInfo(
        id=row.id,
        number=row.number,
        name=row.id.removeprefix(CONFIGURED) if row.id.startswith(CONFIGURED) else None,
        state="running" if row.is_running else row.state.value,
        when=describe_recurrence(about.when, zone),
        zone=str(zone),
        next_at=row.due_at,
        chat=f"{address.channel}:{address.peer}",
        chat_kind=address.kind.value,
        chat_account=address.account,
        chat_thread=address.thread,
        prompt=about.prompt,
        deliver_only=about.delivers,
        agent=about.agent or None,
        session="own" if about.is_apart else "chat",
        missed="skip" if about.is_skipped_if_missed else "once",
        jitter=about.jitter,
        check=None
        if check is None
        else t.ScheduleCheckInfo(
            command=check.command, url=check.url, pointer=check.pointer, on_change=check.on_change, quote=check.quotes
        ),
        tokens_per_run=about.tokens_per_run,
        tokens_per_day=about.tokens_per_day,
        cost_per_day=about.cost_per_day,
        made_by=maker.name or maker.id,
        created_at=about.created_at,
        failures=row.failures,
        note=row.note,
    )


def describe_runs(runs: Sequence[ScheduleRun]) -> t.ScheduleRuns:
    return t.ScheduleRuns(runs=[_describe_run(run) for run in runs])


def _describe_run(run: ScheduleRun) -> t.ScheduleRunInfo:
    ended: datetime | None = run.ended_at
    return t.ScheduleRunInfo(
        number=run.number,
        state=run.state.value,
        planned_at=run.planned_at,
        started_at=run.started_at,
        ended_at=ended,
        times=run.times,
        session=parse_key(run.session)[1] if run.session else None,
        note=run.note,
        tokens=run.tokens,
        cost_micros=run.cost_micros,
    )

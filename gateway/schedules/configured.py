"""The schedules of the settings, as they are stored."""

from collections.abc import Iterator
from datetime import datetime, tzinfo

from msgspec.structs import replace

from config import MissedRun, ScheduleSession, ScheduleSettings, Settings
from gateway.contract import Address, PeerKind, Sender
from gateway.errors import Refused
from gateway.routing import route
from gateway.scheduler.recurrence import zone_of
from gateway.spool import CONFIGURED, Recurrence, ScheduleCheck, ScheduleContent


def configured_schedules(settings: Settings, now: datetime) -> Iterator[tuple[str, str, ScheduleContent]]:
    """Yield id, scope and content of each schedule of the settings."""
    for each in settings.schedules:
        about = _content(each, now, settings.gateway.zone)
        yield f"{CONFIGURED}{each.name}", route(settings, about.address, about.maker).scope, about


def is_same(one: ScheduleContent, other: ScheduleContent) -> bool:
    """Return whether two contents differ in nothing but the time at which they were stored."""
    when = replace(other.when, start=one.when.start)
    return one == replace(other, created_at=one.created_at, when=when)


def _content(settings: ScheduleSettings, now: datetime, default: tzinfo) -> ScheduleContent:
    channel, _, peer = settings.chat.partition(":")
    when = Recurrence(cron=" ".join((settings.cron or "").split()), zone=settings.zone or "")
    if settings.every is not None:
        when = Recurrence(every=settings.every, start=now)
    if (at := settings.at) is not None:
        when = Recurrence(at=at if at.tzinfo is not None else at.replace(tzinfo=_zone(settings, default)))
    check = settings.check
    return ScheduleContent(
        address=Address(
            channel=channel,
            kind=PeerKind(settings.chat_kind),
            peer=peer,
            account=settings.chat_account,
            thread=settings.chat_thread,
        ),
        maker=Sender(id=f"schedule:{settings.name}", name=settings.name, schedule=settings.name),
        prompt=(settings.prompt or "").strip(),
        when=when,
        created_at=now,
        agent=settings.agent or "",
        is_apart=settings.session is ScheduleSession.OWN,
        is_skipped_if_missed=settings.missed is MissedRun.SKIP,
        jitter=settings.jitter,
        delivers=settings.deliver_only,
        check=None
        if check is None
        else ScheduleCheck(
            command=check.command or "",
            url=check.url or "",
            pointer=check.pointer,
            on_change=check.on_change,
            quotes=check.quote,
        ),
        tokens_per_run=settings.tokens_per_run,
        tokens_per_day=settings.tokens_per_day,
        cost_per_day=settings.cost_per_day or 0.0,
    )


def _zone(settings: ScheduleSettings, default: tzinfo) -> tzinfo:
    try:
        return zone_of(Recurrence(zone=settings.zone or ""), default)
    except Refused:  # The settings were checked, and the system has lost the zone since.
        return default

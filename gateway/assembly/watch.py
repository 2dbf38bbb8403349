"""What looks after the others and tells how they are doing: status, metrics, readiness, flushes."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.assembly.agents import Agents
from gateway.assembly.chats import Chats
from gateway.assembly.ground import Ground
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.observability.housekeeping import AtWork, Flushes, FreeSpace, Housekeeping
from gateway.observability.prometheus import Metrics
from gateway.observability.status import Condition, Organs, Status, Vitals

__all__ = ["Watch", "open_watch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    at_work: AtWork
    flushes: Flushes
    condition: Condition
    status: Status
    metrics: Metrics
    housekeeping: Housekeeping


def open_watch(
    ground: Ground, chats: Chats, agents: Agents, lanes: Lanes[Job], *, is_stopping: Callable[[], bool]
) -> Watch:
    organs = _organs(ground, chats, agents, lanes, is_stopping)
    condition = Condition(organs)
    vitals = Vitals(organs, condition, now=ground.now)
    return Watch(
        at_work=organs.at_work,
        flushes=organs.flushes,
        condition=condition,
        status=Status(vitals, ground.tally),
        metrics=Metrics(vitals, ground.tally, is_open=ground.live.settings.http.open_metrics),
        housekeeping=_housekeeping(ground, chats, organs),
    )


def _organs(ground: Ground, chats: Chats, agents: Agents, lanes: Lanes[Job], is_stopping: Callable[[], bool]) -> Organs:
    return Organs(
        channels=chats.channels,
        sessions=ground.sessions,
        spool=ground.spool,
        flushes=Flushes(ground.sessions, ground.tally.flushes.observe),
        space=FreeSpace(ground.live.settings.gateway.data_dir),
        lanes=lanes,
        at_work=AtWork(),
        replies=chats.delivery.chats,
        mcp=agents.mcp,
        roster=agents.current,
        tally=ground.tally,
        is_stopping=is_stopping,
    )


def _housekeeping(ground: Ground, chats: Chats, organs: Organs) -> Housekeeping:
    return Housekeeping(
        live=ground.live,
        flushes=organs.flushes,
        space=organs.space,
        sessions=ground.sessions,
        spool=ground.spool,
        uploads=chats.uploads,
        now=ground.now,
    )

"""Set-up shared by the tests of schedules: a gateway with a clock that the test moves, and a scripted model."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from channels.loopback import LoopbackChannel
from config import Settings
from gateway.contract import Outbound, Sender
from gateway.daemon import Daemon
from gateway.spool import ScheduleRow, ScheduleRun
from tests.agent.wire import WireServer
from tests.daemon.harness import settings

START = datetime(2020, 11, 16, 12, 0, 0, tzinfo=UTC)
"""A Monday. Messages have the time of the real clock, so none of them is a backlog."""
ADA = Sender(id="ada", name="Ada", is_owner=True)
SCOPE = "agent:main:loopback:direct:ada"
OPEN = {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {"dm_policy": "open"}}


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def move(self, daemon: Daemon, **by: float) -> None:
        """Put the clock forward or back, and have it looked at."""
        self.now += timedelta(**by)
        daemon.scheduler.recompute()


def scheduled(folder: Path, server: WireServer | None = None, **tables: Any) -> Settings:  # noqa: ANN401 - tables of any shape.
    """Return settings with a model, and with more tables."""
    model: dict[str, Any] = {}
    if server is not None:
        model = {"providers": {"fake": server.table()}, "agents": {"main": {"provider": "fake", "model": "m"}}}
    merged = {**model, **{key: value for key, value in tables.items() if key != "agents"}}
    if "agents" in tables:
        merged["agents"] = {**model.get("agents", {}), **tables["agents"]}
    return settings(folder, **merged)


async def told(chat: LoopbackChannel, text: str, *, sender: Sender = ADA) -> Outbound:
    await chat.say(text, peer=sender.id, sender=sender)
    return await chat.hear_message()


async def the_schedule(daemon: Daemon) -> ScheduleRow:
    """Return the only schedule, in any state."""
    (row,) = await daemon.spool.schedules(ended=True)
    return row


async def runs_of(daemon: Daemon) -> list[ScheduleRun]:
    """Return the runs of the only schedule, newest first."""
    return await daemon.spool.schedule_runs((await the_schedule(daemon)).id, limit=99)

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from config import Settings
from gateway.access.rules import Live
from gateway.agent.models import ModelInfo
from gateway.sessions import SessionManager
from gateway.spool import Spool
from gateway.turns.agents import AgentRegistry
from gateway.turns.compaction import CONVERSATION, CompactionRequest, Compactor
from gateway.turns.usage import Meter


async def test_a_turn_that_ends_during_shutdown_starts_no_compaction(tmp_path: Path) -> None:
    """The end would wait for it, for minutes."""

    def now() -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC)

    settings = Settings.model_validate({"gateway": {"data_dir": tmp_path}})
    agent = replace(AgentRegistry(settings)["main"], info=ModelInfo(name="house/model"))
    async with await Spool.open(tmp_path) as spool, asyncio.TaskGroup() as group:
        sessions = await SessionManager.open(tmp_path / "sessions", settings.session, now, journal=spool)
        compactions = Compactor(sessions=sessions, meter=Meter(Live(settings), spool, now=now), spool=spool)
        compactions.open(group)
        compactions.stop()
        before = asyncio.all_tasks()
        order = CompactionRequest(session="agent:main:main", agent=agent, person="ann", keep=CONVERSATION)
        await compactions.consider(order, tokens=1_000_000)
        assert asyncio.all_tasks() == before
        await sessions.close()

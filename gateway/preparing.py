"""Preparing a turn: which agent answers, what it is told, and who pays; and what is left to do after it."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from config import DmScope, Settings
from gateway.access.live import Live
from gateway.agent.protocol import Prompt
from gateway.briefing import brief
from gateway.compaction import CONVERSATION, OVERFLOW, Compactions, Keep, Order
from gateway.contract import PeerKind
from gateway.conversation import Message
from gateway.errors import Refused
from gateway.files.room import FileRoom
from gateway.job import Job
from gateway.jottings import Jottings
from gateway.meter import Meter
from gateway.metered import Metered
from gateway.roster import Agent, Roster
from gateway.sessions import SessionManager
from gateway.sessions.keys import file_name
from gateway.spool import Operation
from gateway.usage import Bill, person_of

__all__ = ["Prepared", "Preparing"]


class Prepared(Struct, frozen=True, kw_only=True):
    agent: Agent
    provider: Metered
    """What the agent loop asks: the agent's provider, with a meter on it."""
    bill: Bill
    notes: Path


class Preparing:
    def __init__(
        self,
        *,
        live: Live,
        roster: Callable[[], Roster],
        sessions: SessionManager,
        meter: Meter,
        compactions: Compactions,
        files: FileRoom,
        now: Callable[[], datetime],
    ) -> None:
        self._live = live
        self._roster = roster
        self._sessions = sessions
        self._meter = meter
        self._compactions = compactions
        self.files = files
        self._memory = live.settings.gateway.data_dir / "memory"
        self._jottings = Jottings()
        self._now = now

    def now(self) -> datetime:
        """Return the time in the time zone that people mean."""
        return self._now().astimezone(self._live.settings.gateway.zone)

    async def prepare(self, job: Job) -> Prepared:
        """Find out who answers the turn of `job`, and who pays."""
        roster = self._roster()
        await roster.tools_known()
        session = await self._sessions.look_up(job.session)
        agent = roster.chosen(job.agent, session)
        bill = self._meter.bill(person_of(self._live.settings, job.inbound), agent)
        provider = self._meter.metered(
            agent,
            bill,
            names_senders=_is_shared(self._live.settings, job),
            shorten=partial(self._shorten, job, agent),
        )
        return Prepared(agent=agent, provider=provider, bill=bill, notes=_notes_of(self._memory, job.scope))

    async def brief(self, job: Job, prepared: Prepared) -> Prompt:
        """Put together what the model is told; all that was said in the turn has to be in the transcript already."""
        today = self.now()
        is_shared = _is_shared(self._live.settings, job)
        notes = await self._jottings.told(prepared.notes)
        briefing = await brief(job, prepared.agent, self._sessions, notes=notes, today=today, is_shared=is_shared)
        prepared.provider.before = briefing.before
        prompt = briefing.prompt
        messages = await self.files.shown(prompt.messages, sees=prepared.agent.info.sees_images)
        return prompt if messages is prompt.messages else replace(prompt, messages=messages)

    def used_tool(self, prepared: Prepared) -> None:
        """Believe no longer what was known before a tool ran: it may have kept a note."""
        self._jottings.changed(prepared.notes)

    def news(self) -> list[Operation]:
        """Return what was learned and is to be kept, to be committed with a turn's end."""
        return self._meter.news()

    async def follow_up(self, job: Job, prepared: Prepared) -> None:
        """Let the session be summed up beside what comes next, if the turn has made it long."""
        order = self._order(job, prepared.agent, CONVERSATION)
        with suppress(Refused):  # The session was deleted meanwhile.
            await self._compactions.consider(order, tokens=prepared.provider.tokens)

    async def _shorten(self, job: Job, agent: Agent) -> Sequence[Message]:
        await self._compactions.compact(self._order(job, agent, OVERFLOW))
        before, _ = await self._sessions.divided(job.session, turn=job.turn)
        return before

    def _order(self, job: Job, agent: Agent, keep: Keep) -> Order:
        person = person_of(self._live.settings, job.inbound)
        return Order(session=job.session, agent=agent, person=person, keep=keep)


@lru_cache(maxsize=1_024)
def _notes_of(folder: Path, scope: str) -> Path:
    return folder / file_name(scope)


def _is_shared(settings: Settings, job: Job) -> bool:
    """Tell whether several people talk there, so that the model has to know who said what."""
    return job.inbound.address.kind is not PeerKind.DIRECT or settings.session.dm_scope is DmScope.MAIN

"""Keeps the gateway session in the notebook, so that the node of a cluster that receives next can resume it.

Discord then sends everything that came after the last event that was handled. A message that comes twice in this way is
a duplicate for the core.
"""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import monotonic, time

import structlog

from channels.discord.wire import Json
from gateway.contract import Notebook
from gateway.errors import Transient

log = structlog.get_logger()

SAVE_INTERVAL = 5.0
"""Seconds between two saves while events come in. What comes after the last save is sent again to the next node."""
_SESSION = "gateway_session"
_LOGINS = "gateway_logins"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySession:
    """Everything that is needed to resume a gateway session."""

    id: str
    sequence: int | None
    url: str


class ResumeState:
    """The session up to the last event that was handled, and the times of recent logins. Call `load` first.

    The saved session never skips a message: it is saved only once everything before its sequence is with the core.
    """

    def __init__(
        self,
        notebook: Notebook,
        login_times: deque[float],
        *,
        max_age: float,
        clock: Callable[[], float] = monotonic,
        wall_clock: Callable[[], float] = time,
    ) -> None:
        """`login_times` are by `clock`. `load` replaces those that are known by those of all nodes."""
        self._notebook = notebook
        self._login_times = login_times
        self._max_age = max_age
        self._clock = clock
        self._wall_clock = wall_clock
        self.session: GatewaySession | None = None
        self._saved: GatewaySession | None = None
        self._saved_at = clock()

    async def load(self) -> None:
        """Read what the last node has saved."""
        facts = await self._notebook.read()
        ages = (self._wall_clock() - float(each) for each in json.loads(facts.get(_LOGINS, "[]")))
        self._login_times.clear()
        self._login_times.extend(self._clock() - age for age in ages if 0.0 <= age < self._max_age)
        saved = facts.get(_SESSION)
        self.session = self._saved = GatewaySession(**json.loads(saved)) if saved else None

    async def login(self) -> None:
        """Record the last of `login_times`, and forget the session, which the login ends."""
        self.session = self._saved = None
        now, wall_now = self._clock(), self._wall_clock()
        times = [wall_now - (now - each) for each in self._login_times]
        await self._write({_SESSION: None, _LOGINS: json.dumps(times)})

    async def handled(self, event: str, data: Json, sequence: int, *, is_complete: bool) -> None:
        """Record an event with which the core has everything before it, or not: then the session is not used again."""
        if event == "READY":
            session = GatewaySession(id=data["session_id"], sequence=sequence, url=data["resume_gateway_url"])
        elif self.session is not None:
            session = GatewaySession(id=self.session.id, sequence=sequence, url=self.session.url)
        else:
            return
        self.session = session
        if not is_complete:
            if self._saved is not None:
                await self._save(None)
        elif self._saved is None or self._clock() - self._saved_at > SAVE_INTERVAL:
            await self._save(session)

    async def save(self, *, is_complete: bool) -> None:
        """Save the session as it is now."""
        await self._save(self.session if is_complete else None)

    async def _save(self, session: GatewaySession | None) -> None:
        if session == self._saved:
            return
        fact = None if session is None else json.dumps(asdict(session))
        if await self._write({_SESSION: fact}):
            self._saved, self._saved_at = session, self._clock()

    async def _write(self, facts: dict[str, str | None]) -> bool:
        try:
            await self._notebook.write(facts)
        except Transient as error:  # The next event tries again.
            log.debug("gateway_session_not_saved", reason=str(error))
            return False
        return True

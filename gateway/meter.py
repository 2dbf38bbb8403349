"""The meter: everything that is asked of a model passes through it, is measured, and is put on somebody's bill."""

from collections.abc import Callable, Iterable
from datetime import datetime

from gateway.access.live import Live
from gateway.agent.tokens import Calibrations, measure_frame, measure_message
from gateway.conversation import Message
from gateway.metered import Metered, Shorten, budget_of
from gateway.metrics import Tally
from gateway.roster import Agent
from gateway.spool import Operation, Remember, Spool
from gateway.usage import Bill, Spending

_CALIBRATION_FACT = "token_weights"
"""The fact in the spool that keeps the learned factors, under the name that earlier versions used."""


class Meter:
    def __init__(self, live: Live, spool: Spool, *, now: Callable[[], datetime], tally: Tally | None = None) -> None:
        self._live = live
        self._now = now
        self._spool = spool
        self._tally = tally or Tally()
        self.spending = Spending(spool, now, self._tally)
        self.calibrations = Calibrations()

    async def read(self) -> None:
        """Go on with what was learned before the last restart."""
        facts = await self._spool.facts(_CALIBRATION_FACT)
        self.calibrations = Calibrations(facts.get(_CALIBRATION_FACT))

    def bill(self, person: str, agent: Agent) -> Bill:
        limits = self._live.settings.limits
        return Bill(person, spending=self.spending, limits=limits, about=agent.about, now=self._now)

    def metered(
        self,
        agent: Agent,
        bill: Bill,
        *,
        names_senders: bool = False,
        shorten: Shorten | None = None,
    ) -> Metered:
        return Metered(
            agent.provider,
            info=agent.info,
            calibrations=self.calibrations,
            bill=bill,
            names_senders=names_senders,
            shorten=shorten,
            tally=self._tally,
        )

    def budget(self, agent: Agent) -> int:
        """Return how many tokens a request to the agent's model may have."""
        return budget_of(agent.info, self.calibrations[agent.info.name])

    def size(self, agent: Agent, messages: Iterable[Message]) -> int:
        """Return about how many tokens the agent's next request has before anything is added."""
        measured = measure_frame(agent.system, agent.toolbox.specs()) + sum(map(measure_message, messages))
        return self.calibrations[agent.info.name].estimate(measured)

    def news(self) -> list[Operation]:
        """Return what there is to be kept of what was learned since the last time."""
        news = self.calibrations.news()
        return [] if news is None else [Remember(name=_CALIBRATION_FACT, value=news)]

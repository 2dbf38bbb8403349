"""One message on its way to an answer, which Ctrl-C can stop."""

import asyncio

from channels.terminal.exchange import Exchange, Outcome
from channels.terminal.link import Link

__all__ = ["Asking"]

LAST_WORDS = 2.0
"""How long a stopped answer may take to end; a message that was still waiting behind another gets none."""
GIVEN_UP = Outcome(is_answer=False, text="(No longer waiting for this answer. If it still comes, it is shown here.)")


class Asking:
    """Runs in `group`. `interrupt` asks the gateway to stop; called twice, it does not even wait for that."""

    def __init__(self, link: Link, exchange: Exchange, group: asyncio.TaskGroup) -> None:
        self._link = link
        self._group = group
        self._asking = group.create_task(link.ask(exchange), name="terminal:ask")
        self._stopping: asyncio.Task[Outcome] | None = None

    def interrupt(self) -> None:
        if self._stopping is None:
            self._stopping = self._group.create_task(self._stop(), name="terminal:stop")
        else:
            self._stopping.cancel()
            self._asking.cancel()

    async def outcome(self) -> Outcome:
        """Wait for the answer, or for the gateway's word that it has stopped."""
        await asyncio.wait({self._asking})
        if self._stopping is None:
            return self._asking.result()
        await asyncio.wait({self._stopping})
        if not self._asking.cancelled():
            return self._asking.result()
        return GIVEN_UP if self._stopping.cancelled() else self._stopping.result()

    async def _stop(self) -> Outcome:
        stopped = await self._link.ask(Exchange("/stop"))
        await asyncio.wait({self._asking}, timeout=LAST_WORDS)
        self._asking.cancel()
        return stopped

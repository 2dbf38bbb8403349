"""One run: people write, a daemon dies as often as planned, the next ones bring it to an end, and all is checked."""

import asyncio
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.crash.checks import Allowed, check
from tests.crash.daemons import Daemons
from tests.crash.far_side import Event, FarSide
from tests.crash.order import Order

__all__ = ["Plan", "Ran", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What happens. `deaths` are the points at which the first daemons die, one each."""

    events: Sequence[Event]
    deaths: Sequence[int] = ()
    flavour: str = "plain"
    busy: str = "followup"
    troubles: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The names of the points at which a daemon has died."""

    fired: tuple[str, ...]


async def run(plan: Plan, daemons: Daemons, home: Path) -> Ran:
    """Carry out `plan` in the new folder `home`, which is removed when all is well."""
    home.mkdir(parents=True)  # noqa: ASYNC240 - nothing else runs meanwhile
    order = Order(home=home, flavour=plan.flavour, busy=plan.busy)
    far = FarSide(drops_repeats=plan.flavour == "dropping", answers_together=plan.busy in {"collect", "steer"})
    for chat, script in plan.troubles.items():
        far.troubles[chat].extend(script)
    fired: list[str] = []
    async with far.serving(order.socket):
        far.write(*plan.events)
        try:
            for at in plan.deaths:
                if not await _live(daemons, replace(order, die_at=at), far):
                    break
                fired.append(order.fired.read_text())
            else:
                assert not await _live(daemons, order, far)
            check(order, far, Allowed(deaths=len(fired), lost_answers=far.lost))
        except BaseException as failure:
            failure.add_note(f"{plan}\ndied at {fired}\nlog: {order.log}\nunsettled: {far.unsettled()}")
            raise
    shutil.rmtree(home)
    return Ran(fired=tuple(fired))


async def _live(daemons: Daemons, order: Order, far: FarSide) -> bool:
    """Let a daemon work until all is answered, and end it in good order; tell whether it died before that."""
    arrival = far.arrivals + 1
    pid = await daemons.start(order)
    settled = asyncio.create_task(_work(far, arrival), name="settled")
    ended = asyncio.create_task(daemons.ended(pid), name="ended")
    try:
        await asyncio.wait({settled, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await settled
        status = await daemons.stop(pid)
    finally:
        for task in (settled, ended):
            task.cancel()
        await asyncio.wait({settled, ended})
    if status == -signal.SIGKILL and order.die_at:
        return True
    assert status == 0, f"ended with {status}"
    return False


async def _work(far: FarSide, arrival: int) -> None:
    await far.until_arrival(arrival)
    await far.until_settled()

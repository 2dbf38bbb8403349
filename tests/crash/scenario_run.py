"""Runs a scenario: daemons die at the planned kill points, the next one finishes the work, and all checks run."""

import asyncio
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from gateway.admin.client import ControlClient, NotRunning
from gateway.errors import Refused
from tests.crash.checks import Allowed, check
from tests.crash.daemon_spec import DaemonSpec
from tests.crash.daemons import Daemons
from tests.crash.engines import NewStorage
from tests.crash.fake_platform import Event, FakePlatform
from tests.polling import until


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The events of a scenario. `deaths` has a kill point for each of the first daemons."""

    events: Sequence[Event]
    deaths: Sequence[int] = ()
    flavour: str = "plain"
    busy: str = "followup"
    backlog_limit: int = 20
    later: Sequence[Event] = ()
    """Events that come when all sessions that have ended are archived into memory."""
    has_archivist: bool = True
    """Whether a model archives them. Otherwise, outlines go into the memory."""
    check: Callable[[DaemonSpec], None] = lambda _spec: None
    """Checks what this scenario alone promises."""
    troubles: dict[str, tuple[str, ...]] = field(default_factory=dict)


async def run(plan: Plan, daemons: Daemons, home: Path, new_storage: NewStorage) -> tuple[str, ...]:
    """Run `plan` in the new folder `home`, which is removed on success.

    Returns the names of the kill points at which daemons have died.
    """
    home.mkdir(parents=True)  # noqa: ASYNC240 - no other task runs
    with new_storage(home) as storage:
        spec = DaemonSpec(
            home=home,
            flavour=plan.flavour,
            busy=plan.busy,
            backlog_limit=plan.backlog_limit,
            archives=bool(plan.later) and plan.has_archivist,
            storage=storage,
        )
        reached = await _run(plan, daemons, spec)
    shutil.rmtree(home)
    return tuple(reached)


async def _run(plan: Plan, daemons: Daemons, spec: DaemonSpec) -> list[str]:
    platform = FakePlatform(
        drops_repeats=plan.flavour == "dropping", answers_together=plan.busy in {"collect", "steer"}
    )
    for chat, script in plan.troubles.items():
        platform.troubles[chat].extend(script)
    reached: list[str] = []
    async with platform.serving(spec.socket):
        platform.write(*plan.events)
        try:
            for at in plan.deaths:
                if not await run_daemon(daemons, replace(spec, die_at=at), platform, plan.later):
                    break
                reached.append(spec.death_report.read_text())
            else:
                assert not await run_daemon(daemons, spec, platform, plan.later)
            check(spec, platform, Allowed(deaths=len(reached), lost_answers=platform.lost))
            plan.check(spec)
        except BaseException as failure:
            failure.add_note(f"{plan}\ndied at {reached}\nlog: {spec.log}\nunsettled: {platform.unsettled()}")
            raise
    return reached


async def _is_remembered(spec: DaemonSpec) -> bool:
    """Return whether no session waits to be archived into memory, and no change of the memory files is left."""
    with suppress(NotRunning, Refused):
        async with ControlClient(spec.data_dir) as control:
            archiving = (await control.get("/status"))["archiving"]
            return isinstance(archiving, dict) and not archiving["waiting"] and not archiving["changes"]
    return False


async def run_daemon(daemons: Daemons, spec: DaemonSpec, platform: FakePlatform, later: Sequence[Event] = ()) -> bool:
    """Run a daemon until everything is answered, and stop it. Return True if it died before that.

    The `later` events come when the memory is complete. Then the daemon runs until it is complete again.
    """
    arrival = platform.arrivals + 1
    pid = await daemons.start(spec)

    async def work() -> None:
        await platform.until_arrival(arrival)
        await platform.until_settled()
        if later:
            await until(partial(_is_remembered, spec))
            if later[0] not in platform.events:
                platform.write(*later)
            await platform.until_settled()
            await until(partial(_is_remembered, spec))

    settled = asyncio.create_task(work(), name="settled")
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
    if status == -signal.SIGKILL and spec.die_at:
        return True
    assert status == 0, f"ended with {status}"
    return False

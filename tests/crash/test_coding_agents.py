"""Kills daemons while a coding agent works for them, at every kill point and at several one after the other."""

import asyncio
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.acp.harness import needs_sandbox
from tests.crash.checks import Allowed
from tests.crash.coding import check_coding, coder, programs
from tests.crash.daemon_spec import DaemonSpec
from tests.crash.daemons import Daemons, daemons
from tests.crash.fake_platform import Event, FakePlatform
from tests.crash.scale import SCALE
from tests.crash.scenario_run import run_daemon
from tests.polling import until

pytestmark = [needs_sandbox, pytest.mark.timeout(300 * SCALE)]

STRIDE = max(1, 50 // SCALE**2)
"""The distance between tried kill points. `make crash` tries each."""
SHARDS = 2


@dataclass(frozen=True, kw_only=True)
class CodingPlan:
    """The scripts that a person sends. The options and settings are those of the scripted coding agent."""

    scripts: Sequence[str]
    options: Sequence[str] = ()
    settings: dict[str, Any] = field(default_factory=dict)  # Any: values of the settings.

    def events(self) -> list[Event]:
        return [Event(id=f"m{number}", chat="ada", text=text) for number, text in enumerate(self.scripts, 1)]


PLANS = {
    "asking": CodingPlan(
        scripts=(
            "append a one ;; say First. ;; tool read README.md ;; ask edit b yes ;; ask edit c no ;; say Done. #",
            "say Second. #",
        )
    ),
    "handed_over": CodingPlan(
        scripts=("say One. #", "append a one ;; ask edit b yes ;; say Two. #"), options=("load=no",)
    ),
    "worktree": CodingPlan(
        scripts=("append a one ;; ask edit b yes ;; say One. #", "/new", "say Two. #"), settings={"worktree": True}
    ),
}


async def run(plan: CodingPlan, deaths: Sequence[int], forked: Daemons, home: Path) -> list[str]:
    """Send the scripts of a plan. A daemon dies at each of `deaths`, and the last one does not. Returns where."""
    home.mkdir(parents=True)  # noqa: ASYNC240 - no other task runs
    settings = await asyncio.to_thread(coder, home, *plan.options, **plan.settings)
    spec = DaemonSpec(home=home, coder=settings)
    platform = FakePlatform()
    died: list[str] = []
    async with platform.serving(spec.socket):
        platform.write(*plan.events())
        try:
            for at in (*deaths, 0):
                if not await run_daemon(forked, replace(spec, die_at=at), platform):
                    break
                died.append(spec.death_report.read_text())
                await until(lambda: not programs(home))
            check_coding(spec, platform, Allowed(deaths=len(died)))
        except BaseException as failure:
            failure.add_note(f"died at {deaths}: {died}\nlog: {spec.log}\nunsettled: {platform.unsettled()}")
            raise
    await asyncio.to_thread(shutil.rmtree, home)
    return died


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("name", PLANS)
async def test_nothing_is_lost_or_done_twice_after_a_death_at_any_point(tmp_path: Path, name: str, shard: int) -> None:
    """Tries higher and higher points until the daemon finishes before it reaches one."""
    at, deaths = 1 + shard * STRIDE, 0
    async with daemons(imports=("gateway.acp.turn",)) as forked:
        while await run(PLANS[name], (at,), forked, tmp_path / str(at)):
            at, deaths = at + SHARDS * STRIDE, deaths + 1
    assert deaths > 1, "the daemon reached no kill points"


@pytest.mark.parametrize("seed", range(SCALE))
async def test_nothing_is_lost_or_done_twice_after_repeated_deaths(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    async with daemons(imports=("gateway.acp.turn",)) as forked:
        plan = PLANS[sorted(PLANS)[seed % len(PLANS)]]
        deaths = tuple(rng.randrange(1, 120) for _ in range(rng.randrange(2, 5)))
        await run(plan, deaths, forked, tmp_path / str(seed))

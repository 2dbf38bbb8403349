"""Kills daemons at every kill point while a program starts, prompts, ends and resumes a session of the API."""

import asyncio
import random
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.api_program import ApiProgram
from tests.crash.daemon_spec import DaemonSpec
from tests.crash.daemons import Daemons, daemons
from tests.crash.scale import SCALE

STRIDE = max(1, 12 // SCALE)
"""The distance between tried kill points. `make crash` tries each."""
SCRIPTS = {
    "prompts": ("p1 tool tools", "p2", "p3 long"),
    "completing": ("p1 tool", "p2", "complete", "resume", "p3"),
    "cancelling": ("p1", "p2 tool hang", "p3", "cancel", "resume", "p4 tool"),
}


async def run(steps: Sequence[str], deaths: Sequence[int], forked: Daemons, home: Path) -> list[str]:
    """Run a program. A daemon dies at each of `deaths`, and the last one does not. Returns where they have died."""
    home.mkdir(parents=True)  # noqa: ASYNC240 - no other task runs
    spec = DaemonSpec(home=home, channels={"loopback": {}})
    program = ApiProgram(spec=spec, steps=steps)
    died: list[str] = []
    try:
        for at in (*deaths, 0):
            pid = await forked.start(replace(spec, die_at=at))
            working = asyncio.create_task(program.work(), name="work")
            ending = asyncio.create_task(forked.ended(pid), name="ended")
            try:
                await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    await working
                status = await forked.stop(pid)
            finally:
                for task in (working, ending):
                    task.cancel()
                await asyncio.wait({working, ending})
            if status == 0:
                break
            assert (status, at > 0) == (-signal.SIGKILL, True), f"ended with {status}"
            died.append(spec.death_report.read_text())
        program.check(len(died))
    except BaseException as failure:
        failure.add_note(f"{steps}\ndied at {died}\nlog: {spec.log}\n{program}")
        raise
    shutil.rmtree(home)
    return died


@pytest.mark.parametrize("script", SCRIPTS)
async def test_every_prompt_has_one_outcome_after_a_death_at_any_point(tmp_path: Path, script: str) -> None:
    at, deaths = 1, 0
    async with daemons() as forked:
        await run(SCRIPTS[script], (), forked, tmp_path / "unharmed")
        while await run(SCRIPTS[script], (at,), forked, tmp_path / str(at)):
            at, deaths = at + STRIDE, deaths + 1
    assert deaths > 2, "the daemon reached no kill points"


@pytest.mark.parametrize("seed", range(SCALE))
async def test_every_prompt_has_one_outcome_after_repeated_deaths(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    async with daemons() as forked:
        for number, script in enumerate(SCRIPTS.values()):
            deaths = tuple(rng.randrange(1, 100) for _ in range(rng.randrange(2, 6)))
            await run(script, deaths, forked, tmp_path / str(number))

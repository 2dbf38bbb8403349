"""The power is cut at every step of a conversation, and what was not synced is gone, torn or out of order."""

import json
import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.checks import Allowed, check
from tests.crash.daemons import Daemons, daemons
from tests.crash.far_side import FarSide, Shown
from tests.crash.order import Order
from tests.crash.powerloss import Disk, Loss, restore
from tests.crash.scenarios import said
from tests.crash.trace import STRACE, Step, read_trace

CUTS = int(os.environ.get("GATEHOUSE_POWERLOSS_CUTS", "40"))
"""How many cuts are tried; 0 tries one at every step, in three ways."""

EVENTS = said("ada:tool tools", "bob:long", "ada:/new", "ada:", "bob:tool")

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


async def recorded(home: Path) -> list[Step]:
    """Let a daemon answer everything, and return what it has done."""
    order, far = Order(home=home), FarSide()
    home.mkdir()  # noqa: ASYNC240 - nothing else runs meanwhile
    trace = home / "trace"
    async with daemons(*STRACE, "-o", str(trace)) as forked, far.serving(order.socket):
        far.write(*EVENTS)
        pid = await forked.start(order)
        await far.until_settled(120)
        assert await forked.stop(pid) == 0
        check(order, far, Allowed())
    return read_trace(trace)


def seen_by_others(steps: Sequence[Step], order: Order) -> tuple[FarSide, str]:
    """Return what the platform knew, and what the tools had done, after these steps: a power cut takes none of it."""
    far = FarSide(events=list(EVENTS))
    effects = ""
    for step in steps:
        if step.path == str(order.effects):
            effects += step.data.decode()
        elif step.call == "sendto" and step.data.startswith(b"{"):
            _hear(far, json.loads(step.data))
    return far, effects


def _hear(far: FarSide, words: dict[str, str]) -> None:
    if words.get("op") == "send":
        far.show(
            Shown(
                key=words["key"],
                chat=words["chat"],
                reply_to=words["reply_to"],
                kind=words["kind"],
                is_failure=bool(words["is_failure"]),
                texts=[words["text"]],
            )
        )
    elif "op" not in words and "id" in words:
        far.acknowledged.add(words["id"])


async def recover(steps: Sequence[Step], seed: int, home: Path, was: Order, forked: Daemons) -> None:
    """Cut the power after these steps, start anew, and look whether all is as it must be."""
    disk = Disk(was.data_dir)
    for step in steps:
        disk.take(step)
    order = replace(was, home=home)
    far, effects = seen_by_others(steps, was)
    restore(disk.left(Loss(seed)), was.data_dir, order.data_dir)
    order.effects.write_text(effects)
    async with far.serving(order.socket):
        try:
            arrival = far.until_arrival(1)
            pid = await forked.start(order)
            await arrival
            await far.until_settled()
            assert await forked.stop(pid) == 0
            check(order, far, Allowed(deaths=1))
        except BaseException as failure:
            failure.add_note(f"cut after {steps[-1:]}, dice {seed}, in {home}")
            raise
    shutil.rmtree(home)


def cuts(steps: Sequence[Step], root: Path) -> list[tuple[int, int]]:
    """Return the numbers of steps after which to cut, each with what its dice are thrown with."""
    places = [
        number for number, step in enumerate(steps, 1) if step.path.startswith(str(root)) or step.call == "sendto"
    ]
    if CUTS == 0:
        return [(place, seed) for place in places for seed in (0, 1, 1_000 + place)]
    dice = random.Random(1)  # noqa: S311 - not for secrets
    return [(dice.choice(places), dice.choice([0, 1, *range(2, 100)])) for _ in range(CUTS)]


async def test_nothing_acknowledged_is_lost_when_the_power_is_cut(tmp_path: Path) -> None:
    was = Order(home=tmp_path / "first")
    steps = await recorded(was.home)
    async with daemons() as forked:
        for number, (place, seed) in enumerate(cuts(steps, was.data_dir)):
            home = tmp_path / str(number)
            home.mkdir()
            await recover(steps[:place], seed, home, was, forked)

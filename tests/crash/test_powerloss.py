"""Cuts the power at every step of a conversation. Unsynced changes are then lost, torn or reordered."""

import json
import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.checks import Allowed, check
from tests.crash.daemon_spec import DaemonSpec
from tests.crash.daemons import Daemons, daemons
from tests.crash.fake_platform import Event, FakePlatform, Shown
from tests.crash.scenarios import messages
from tests.crash.simulated_disk import Disk, Loss, restore
from tests.crash.strace import STRACE, Step, read_trace

CUTS = int(os.environ.get("GATEHOUSE_POWERLOSS_CUTS", "40"))
"""The number of power cuts. 0 tries three cuts at every step."""

CONVERSATIONS = {
    "talking": messages("ada:tool tools", "bob:long", "ada:/new", "ada:", "bob:tool"),
    "archiving": messages("ada:", "ada:/new", "ada:", "ada:/new", "ada:", "ada:/session restore 1", "ada:/new", "ada:"),
}

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


async def record_steps(spec: DaemonSpec, events: Sequence[Event]) -> list[Step]:
    """Let a daemon answer everything, and return its system calls."""
    home, platform = spec.home, FakePlatform()
    home.mkdir()
    trace = home / "trace"
    async with daemons(*STRACE, "-o", str(trace)) as forked, platform.serving(spec.socket):
        platform.write(*events)
        pid = await forked.start(spec)
        await platform.until_settled(120)
        assert await forked.stop(pid) == 0
        check(spec, platform, Allowed())
    return read_trace(trace)


def outside_state(steps: Sequence[Step], spec: DaemonSpec, events: Sequence[Event]) -> tuple[FakePlatform, str]:
    """Return the state of the platform and the records of the tools after these steps. A power cut changes neither."""
    platform = FakePlatform(events=list(events))
    effects = ""
    for step in steps:
        if step.path == str(spec.effects):
            effects += step.data.decode()
        elif step.call == "sendto" and step.data.startswith(b"{"):
            _apply_to_platform(platform, json.loads(step.data))
    return platform, effects


def _apply_to_platform(platform: FakePlatform, sent: dict[str, str]) -> None:
    if sent.get("op") == "send":
        platform.show(
            Shown(
                key=sent["key"],
                chat=sent["chat"],
                reply_to=sent["reply_to"],
                kind=sent["kind"],
                is_failure=bool(sent["is_failure"]),
                texts=[sent["text"]],
            )
        )
    elif "op" not in sent and "id" in sent:
        platform.acknowledged.add(sent["id"])


async def recover(
    steps: Sequence[Step], events: Sequence[Event], seed: int, home: Path, first: DaemonSpec, forked: Daemons
) -> None:
    """Cut the power after these steps, start a new daemon, and run all checks."""
    disk = Disk(first.data_dir)
    for step in steps:
        disk.apply(step)
    spec = replace(first, home=home)
    platform, effects = outside_state(steps, first, events)
    restore(disk.left(Loss(seed)), first.data_dir, spec.data_dir)
    spec.effects.write_text(effects)
    async with platform.serving(spec.socket):
        try:
            arrival = platform.until_arrival(1)
            pid = await forked.start(spec)
            await arrival
            await platform.until_settled()
            assert await forked.stop(pid) == 0
            check(spec, platform, Allowed(deaths=1))
        except BaseException as failure:
            failure.add_note(f"cut after {steps[-1:]}, seed {seed}, in {home}")
            raise
    shutil.rmtree(home)


def cuts(steps: Sequence[Step], root: Path) -> list[tuple[int, int]]:
    """Return the numbers of steps after which to cut the power, each with a seed for `Loss`."""
    places = [
        number for number, step in enumerate(steps, 1) if step.path.startswith(str(root)) or step.call == "sendto"
    ]
    if CUTS == 0:
        return [(place, seed) for place in places for seed in (0, 1, 1_000 + place)]
    rng = random.Random(1)  # noqa: S311 - not for secrets
    return [(rng.choice(places), rng.choice([0, 1, *range(2, 100)])) for _ in range(CUTS)]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
async def test_no_acknowledged_message_is_lost_in_a_power_cut(tmp_path: Path, conversation: str) -> None:
    events = CONVERSATIONS[conversation]
    first = DaemonSpec(home=tmp_path / "first", backlog_limit=1)
    steps = await record_steps(first, events)
    async with daemons() as forked:
        for number, (place, seed) in enumerate(cuts(steps, first.data_dir)):
            home = tmp_path / str(number)
            home.mkdir()
            await recover(steps[:place], events, seed, home, first, forked)

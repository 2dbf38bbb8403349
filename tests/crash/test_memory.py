"""Kills daemons at every kill point of archiving into memory.

Sessions are resumed and deleted, and people change what is known.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gateway.memory import memory_folder
from tests.crash.checks import SECRET
from tests.crash.daemon_spec import CHANNEL, DaemonSpec
from tests.crash.daemons import ROOT, daemons
from tests.crash.engines import DATABASE_MODULES, ENGINES, NewStorage
from tests.crash.fake_platform import Event
from tests.crash.scale import SCALE
from tests.crash.scenario_run import Plan, run
from tests.crash.scenarios import messages
from tests.crash.stored import remembered

STRIDES = {"files": max(1, 16 // SCALE), "sqlite": max(1, 60 // SCALE), "postgresql": max(1, 120 // SCALE)}
"""The distance between tried kill points. `make crash` tries each."""
SHARDS = {"files": 2, "sqlite": 1, "postgresql": 1} if SCALE == 1 else {"files": 4, "sqlite": 2, "postgresql": 2}
"""Tests into which the kill points are divided. Each has a time limit."""

EVENTS = messages("ada:one", f"ada:{SECRET}", "ada:/new", "ada:three", "ada:/new", "bob:four", "ada:five", "ada:/new")
LATER = ("/session resume 2", "l2 six", "/new", "/session delete 1 yes")
REMEMBERED = [("l2 six", 2), ("m4 three", 2), ("m7 five", 3)]
"""The statements that are left, with the number of their session. All others were deleted or have not ended."""
OUTLINES = [("m4 three / l2 six", 2), ("m7 five", 3)]

CHANGED_EVENTS = messages("ada:one", f"ada:{SECRET}", f"ada:three {SECRET}", "ada:/new")
CHANGES = ("/memory forget 2", "/memory edit 3 seven", "/memory edit 1 eight", "/memory forget 1")
CHANGED = [("seven", 1)]
"""All sessions of these events are one, so the numbers of the statements are known."""


def later(*texts: str) -> tuple[Event, ...]:
    return tuple(Event(id=f"l{number}", chat="ada", text=text) for number, text in enumerate(texts, 1))


def check_memory(remembered_texts: Sequence[tuple[str, int]], spec: DaemonSpec) -> None:
    """Check that these statements are known, once and in their scope, and nothing else.

    No file has what was forgotten.
    """
    folder = memory_folder(spec.data_dir, f"agent:main:{CHANNEL}:direct:ada")
    found = {
        name: sorted((_said(text), int(origin.split()[1].rstrip(",;"))) for text, origin in statements)
        for name, statements in remembered(spec).items()
        if statements
    }
    assert found == {folder.name: sorted(remembered_texts)}
    files = [path for path in folder.parent.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def _said(text: str) -> str:
    """Return what an outline says after `Session 2 (2026-11-19): `. Other statements have no such beginning."""
    return text.partition("): ")[2] or text


PLANS = {
    "statements": Plan(events=EVENTS, later=later(*LATER), check=partial(check_memory, REMEMBERED)),
    "outlines": Plan(events=EVENTS, later=later(*LATER), check=partial(check_memory, OUTLINES), has_archivist=False),
    "changes": Plan(events=CHANGED_EVENTS, later=later(*CHANGES), check=partial(check_memory, CHANGED)),
}


def test_a_start_deletes_what_a_death_at_any_point_of_a_write_has_left(tmp_path: Path) -> None:
    """A start looks into one folder only, so a change must not leave anything in those of the scopes."""
    command = [sys.executable, "-m", "tests.crash.memory_writer", str(tmp_path)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    deaths, cut, left = map(int, finished.stdout.split())
    assert deaths > cut > 2, "no write was cut"
    assert not left


@pytest.mark.parametrize("subject", PLANS)
@pytest.mark.parametrize(("engine", "shard"), [(each, shard) for each in ENGINES for shard in range(SHARDS[each])])
async def test_what_was_said_is_remembered_once_and_in_its_scope_after_a_death_at_any_point(
    tmp_path: Path,
    storages: NewStorage,
    record_property: Callable[[str, object], None],
    engine: str,
    shard: int,
    subject: str,
) -> None:
    plan = PLANS[subject]
    stride = STRIDES[engine]
    at, deaths = 1 + stride // 2 + shard * stride, 0
    async with daemons(imports=() if engine == "files" else DATABASE_MODULES) as forked:
        await run(plan, forked, tmp_path / "unharmed", storages)
        while await run(replace(plan, deaths=(at,)), forked, tmp_path / str(at), storages):
            at, deaths = at + SHARDS[engine] * stride, deaths + 1
    record_property("deaths", deaths)
    assert deaths > 2, "the daemon reached no kill points"

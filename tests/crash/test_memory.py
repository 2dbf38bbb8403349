"""Kills daemons at every kill point while sessions are archived into memory, resumed, pruned and deleted."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
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

EVENTS = messages("ada:one", f"ada:{SECRET}", "ada:/new", "ada:three", "ada:/new", "bob:four", "ada:five", "ada:/new")
LATER = tuple(
    Event(id=f"l{number}", chat="ada", text=text)
    for number, text in enumerate(("/session resume 2", "l2 six", "/new", "/session delete 1 yes"), 1)
)
REMEMBERED = [("l2 six", 2), ("m4 three", 2), ("m7 five", 3)]
"""The statements that are left, with the number of their session. All others were deleted or have not ended."""


def check_memory(spec: DaemonSpec) -> None:
    """Every message of a session that has ended is known in its scope, once. Nothing else is."""
    folder = memory_folder(spec.data_dir, f"agent:main:{CHANNEL}:direct:ada")
    found = {
        name: sorted((text, int(origin.split()[1].rstrip(","))) for text, origin in statements)
        for name, statements in remembered(spec).items()
        if statements
    }
    assert found == {folder.name: sorted(REMEMBERED)}


def test_a_start_deletes_what_a_death_at_any_point_of_a_write_has_left(tmp_path: Path) -> None:
    """A start looks into one folder only, so a change must not leave anything in those of the scopes."""
    command = [sys.executable, "-m", "tests.crash.memory_writer", str(tmp_path)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    deaths, cut, left = map(int, finished.stdout.split())
    assert deaths > cut > 2, "no write was cut"
    assert not left


@pytest.mark.parametrize("engine", ENGINES)
async def test_what_was_said_is_remembered_once_and_in_its_scope_after_a_death_at_any_point(
    tmp_path: Path, storages: NewStorage, record_property: Callable[[str, object], None], engine: str
) -> None:
    plan = Plan(events=EVENTS, later=LATER, check=check_memory)
    at, deaths = 1 + STRIDES[engine] // 2, 0
    async with daemons(imports=() if engine == "files" else DATABASE_MODULES) as forked:
        await run(plan, forked, tmp_path / "unharmed", storages)
        while await run(replace(plan, deaths=(at,)), forked, tmp_path / str(at), storages):
            at, deaths = at + STRIDES[engine], deaths + 1
    record_property("deaths", deaths)
    assert deaths > 2, "the daemon reached no kill points"

"""A writer that is killed again and again loses nothing that was acknowledged to it."""

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from tests.sessions.conftest import Clock

ROUNDS = 6

WRITER = """
import asyncio, sys
from datetime import UTC, datetime
from pathlib import Path
from config import SessionSettings
from gateway.contract import Address, PeerKind
from gateway.sessions import SessionManager, entries as e
ANN = Address(channel="web", kind=PeerKind.DIRECT, peer="ann")

async def talk(manager, scope, run):
    number = 0
    while True:
        number += 1
        if number % 40 == 0:
            await manager.start_new(scope, agent="main", origin=ANN)
        session = await manager.resolve_active(scope, agent="main", origin=ANN)
        text = f"{run}-{number}"
        await manager.append(session.key, [e.User(content=text), e.Assistant(content=text)])
        print(scope, session.number, text, flush=True)

async def main(directory, run):
    manager = await SessionManager.open(Path(directory), SessionSettings(backlog_limit=1000), lambda: datetime.now(UTC))
    await manager.recover()
    print("started", flush=True)
    async with asyncio.TaskGroup() as tasks:
        for name in "abc":
            tasks.create_task(talk(manager, f"agent:main:web:direct:{name}", run))
        while True:
            await asyncio.sleep(0.005)
            await manager.flush()

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


Told = dict[tuple[str, int], list[str]]


def killed_writer(directory: Path, run: int, lines: int) -> list[str]:
    """Kill a writer after so many acknowledged lines, and return these lines."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory), str(run)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(lines)]
    process.kill()
    rest, _ = process.communicate()
    lines_told = (*told, *rest.splitlines(keepends=True))
    return [line for line in lines_told if line.startswith("agent:") and line.endswith("\n")]


async def everything(directory: Path) -> Told:
    """Read all sessions after a kill, and check that the files are sound."""
    manager = await SessionManager.open(directory, SessionSettings(), Clock())
    await manager.recover()
    found: Told = {}
    for scope in manager.scopes():
        for meta in manager.list(scope):
            entries = [entry async for entry in manager.entries(meta.key)]
            assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
            found[scope, meta.number] = [entry.content for entry in entries if isinstance(entry, e.User)]
    kinds = {problem.kind for problem in (await manager.verify()).problems}
    await manager.close()
    assert kinds <= {"set_aside"}  # A torn half is kept.
    return found


@pytest.mark.parametrize("seed", range(2))
def test_acknowledged_entries_survive_repeated_kills(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - the same kills for the same seed.
    directory = tmp_path / "sessions"
    told: Told = {}
    for run in range(ROUNDS):
        for line in killed_writer(directory, run, chance.randrange(1, 300)):
            scope, number, text = line.split()
            told.setdefault((scope, int(number)), []).append(text)
        if chance.random() < 1 / 3:
            (directory / "index.json").unlink(missing_ok=True)
    found = asyncio.run(everything(directory))
    for session, texts in told.items():
        wanted = set(texts)
        assert [text for text in found[session] if text in wanted] == texts
    unheard = sum(map(len, found.values())) - sum(map(len, told.values()))
    assert 0 <= unheard <= 3 * ROUNDS, "each kill may catch one answer of each task on its way"

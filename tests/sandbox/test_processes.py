import asyncio
import os
from pathlib import Path

import pytest

from gateway.sandbox.processes import RunLimits, kill_group, run_process


async def test_a_program_that_cannot_be_killed_yet_is_killed_later(tmp_path: Path) -> None:
    """A sandbox that is still being set up has no process that could be killed."""
    started = asyncio.Event()
    tries: list[int] = []

    async def watch(_process: int) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    def kill(process: int) -> None:
        tries.append(process)
        if len(tries) > 1:
            kill_group(process)

    bounds = RunLimits(seconds=600, shown=100)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        command = run_process(["/bin/sleep", "600"], env={}, cwd=tmp_path, bounds=bounds, kill=kill, watch=watch)
        running = group.create_task(command, name="command")
        await started.wait()
        running.cancel()
    assert running.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(tries[0], 0)

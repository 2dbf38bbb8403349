"""A command with its bounds, and running it in a sandbox."""

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gateway.sandbox.processes import Bounds, Ended, run
from gateway.sandbox.walls import WORKSPACE, Limits, sandboxed
from gateway.sandbox.watching import excess, kill_sandbox

__all__ = ["Script", "confined", "surroundings"]

_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    command: str
    workspace: Path
    limits: Limits
    bounds: Bounds
    network: bool = False


async def confined(script: Script) -> Ended:
    """Run `script` in a sandbox made by this process; `NoSandbox` says why it can make none."""
    argv = await asyncio.to_thread(sandboxed, script.command, script.workspace, script.limits, network=script.network)
    return await run(
        argv,
        env=surroundings(WORKSPACE, "/tmp"),  # noqa: S108 - the sandbox's own.
        cwd=Path("/"),
        bounds=script.bounds,
        kill=kill_sandbox,
        watch=partial(excess, limits=script.limits),
    )


def surroundings(workspace: str, home: str) -> dict[str, str]:
    """Return all that a command sees: nothing of our own environment, which can hold keys."""
    return {"PATH": _PATH, "HOME": home, "PWD": workspace, "LANG": "C.UTF-8", "TERM": "dumb", "USER": "agent"}

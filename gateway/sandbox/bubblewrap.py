"""The walls of the sandbox: bubblewrap, in which there is the workspace, the system's programs, and nothing else."""

import asyncio
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from gateway.sandbox.processes import ProcessResult, RunLimits, run_process

WORKSPACE = "/workspace"

_TMP_BYTES = 256 * 1024 * 1024
_MAX_FILE_BYTES = 1024 * 1024 * 1024
_PROBE_SECONDS = 20.0
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64")
_READABLE = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/ssl/certs")
"""Of /etc nothing else: it can hold our own configuration, and others' keys."""
_FOR_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")


class SandboxUnavailable(Exception):
    """Its text is a sentence for the model: why no command can be run, and what the operator can do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    memory_bytes: int
    processes: int


def bubblewrap_argv(command: str, workspace: Path, limits: SandboxLimits, *, network: bool) -> list[str]:
    """Return what runs `command` in the sandbox; `NoSandbox` says why there is none. It blocks: call it in a thread.

    It must be started with an empty environment: bubblewrap's own first process shows the one that it was given.
    """
    guard = _guard()
    inside = ["--bind", str(workspace.resolve()), WORKSPACE, "--chdir", WORKSPACE, "--remount-ro", "/"]
    net = ["--share-net", *_bound(_FOR_NETWORK)] if network else []
    return [*guard, *net, *inside, "--", *prlimit_argv(command, limits, f"--nproc={limits.processes}")]


def prlimit_argv(command: str, limits: SandboxLimits, *more: str) -> list[str]:
    """Return what runs `command` with limits that each of its processes inherits, and none can raise again.

    The number of processes is not among them: the kernel counts all that their user has, but for those in a sandbox.
    """
    prlimit = shutil.which("prlimit")
    if prlimit is None:
        raise SandboxUnavailable(
            "The shell is not available: this machine has no `prlimit`. Its operator can install util-linux."
        )
    bounds = [
        f"--as={limits.memory_bytes}",
        f"--fsize={_MAX_FILE_BYTES}",
        "--core=0",
        *more,
    ]
    return [*_behind_others(), prlimit, *bounds, "--", "/bin/sh", "-c", command]


def _behind_others() -> list[str]:
    """Let commands have the time that nobody else wants, so that the daemon can always get a word in and end them."""
    chrt = shutil.which("chrt")
    return [chrt, "--idle", "0"] if chrt else []


def _guard() -> list[str]:
    """Return bubblewrap with all that every command gets, once it has been seen to work here."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxUnavailable(_unavailable("bubblewrap is not installed"))
    return [bwrap, *_proven(bwrap)]


@cache  # A failure raises, and is therefore looked at again.
def _proven(bwrap: str) -> tuple[str, ...]:
    """Return the options that work here. `--disable-userns` is unknown before bubblewrap 0.8."""
    complaint = ""
    for strict in (("--disable-userns",), ()):
        options = (*_walls(), *strict)
        if not (complaint := _complaint([bwrap, *options])):
            return options
    raise SandboxUnavailable(_unavailable(complaint))


def _unavailable(reason: str) -> str:
    return (
        f"The shell is not available: commands are run in a sandbox, and there is none on this machine ({reason}). "
        "The operator can install bubblewrap and allow user namespaces."
    )


def _walls() -> list[str]:
    """Give no network, no capability and a /proc that tells of the sandbox alone, read-only: root could set sysctls."""
    tmp = ["--size", str(_TMP_BYTES), "--tmpfs"]
    return [
        *("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--ro-bind", "/usr", "/usr", *_system(), *_bound(_READABLE)),
        *("--proc", "/proc", "--remount-ro", "/proc"),
        *("--dev", "/dev", *tmp, "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108 - inside, where it is empty.
        *(*tmp, "/tmp"),  # noqa: S108 - as above.
        *("--hostname", "sandbox"),
    ]


def _system() -> list[str]:
    arguments: list[str] = []
    for name in _SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    return arguments


def _bound(paths: tuple[str, ...]) -> list[str]:
    return [word for path in paths for word in ("--ro-bind-try", os.path.realpath(path), path)]


def _complaint(guard: list[str]) -> str:
    try:
        tried = subprocess.run(  # noqa: S603 - our own words.
            [*guard, "--", "/bin/sh", "-c", ":"], env={}, capture_output=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as trouble:
        return str(trouble)
    return "" if tried.returncode == 0 else tried.stderr.decode(errors="replace").strip()[:200] or "it does not start"


_PAUSE = 0.05
_PAGE = os.sysconf("SC_PAGE_SIZE")


async def watch_limits(bwrap: int, limits: SandboxLimits) -> str:
    """Return only when the sandbox that process `bwrap` started goes beyond its limits; say in which way."""
    while True:
        if reason := await asyncio.to_thread(_excess, bwrap, limits):
            return reason
        await asyncio.sleep(_PAUSE)


def _excess(bwrap: int, limits: SandboxLimits) -> str:
    with suppress(OSError, IndexError, ValueError):  # Not begun yet, or over by now.
        inner = Path(f"/proc/{_first_inside(bwrap)}/root/proc")
        if inner.stat().st_dev == Path("/proc").stat().st_dev:
            return ""  # The sandbox is still being built, and this is our own /proc.
        running = [name for name in os.listdir(inner) if name.isdigit()]  # noqa: PTH208 - names are all that is needed.
        if len(running) > limits.processes:
            return f"more than {limits.processes} processes"
        if sum(_resident(inner / name) for name in running) > limits.memory_bytes:
            return f"more than {limits.memory_bytes // 1024**2} MB of memory"
    return ""


def kill_sandbox(bwrap: int) -> None:
    """Kill the first process inside, and with it, by the kernel, all others; `bwrap` ends once they are gone."""
    with suppress(OSError, IndexError, ValueError):  # It has ended.
        os.kill(_first_inside(bwrap), signal.SIGKILL)


def _first_inside(bwrap: int) -> int:
    return int(Path(f"/proc/{bwrap}/task/{bwrap}/children").read_text().split()[0])


def _resident(process: Path) -> int:
    try:
        return int((process / "statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):  # Over by now.
        return 0


_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCommand:
    command: str
    workspace: Path
    limits: SandboxLimits
    bounds: RunLimits
    network: bool = False


async def run_sandboxed(script: SandboxCommand) -> ProcessResult:
    """Run `script` in a sandbox made by this process; `NoSandbox` says why it can make none."""
    argv = await asyncio.to_thread(
        bubblewrap_argv, script.command, script.workspace, script.limits, network=script.network
    )
    return await run_process(
        argv,
        env=command_environment(WORKSPACE, "/tmp"),  # noqa: S108 - the sandbox's own.
        cwd=Path("/"),
        bounds=script.bounds,
        kill=kill_sandbox,
        watch=partial(watch_limits, limits=script.limits),
    )


def command_environment(workspace: str, home: str) -> dict[str, str]:
    """Return all that a command sees: nothing of our own environment, which can hold keys."""
    return {"PATH": _PATH, "HOME": home, "PWD": workspace, "LANG": "C.UTF-8", "TERM": "dumb", "USER": "agent"}

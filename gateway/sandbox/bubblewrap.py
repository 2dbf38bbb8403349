"""The sandbox: bubblewrap, with the workspace, the system's programs, and nothing else of this machine."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from gateway.sandbox.processes import ProcessResult, RunLimits, run_process
from gateway.sandbox.seccomp import filter_program

WORKSPACE = "/workspace"
ATTACHMENTS = "/attachments"
"""Where commands find the files of their session, read-only. The file tools use this path as well."""
SKILLS = "/skills"
HIDDEN_IN_SKILLS = ".git"
"""The folder of a checkout that no agent sees: the URL of its remote may contain a password."""
"""Where they find the folder of each skill, read-only, by its name."""

_SESSION_KEYRING = Path(__file__).with_name("session_keyring.py")
_TMP_BYTES = 256 * 1024 * 1024
_MAX_FILE_BYTES = 1024 * 1024 * 1024
_PROBE_TIMEOUT = 20.0
_WATCH_INTERVAL = 0.05
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_THREADS, _RESIDENT_PAGES = 17, 21
"""Fields of /proc/<pid>/stat, counted from the one after the name of the program."""
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64")
_READABLE = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/ssl/certs")
"""Nothing else of /etc: it may contain our own configuration, and keys of others."""
_READABLE_WITH_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")


class SandboxUnavailable(Exception):
    """Its text is a sentence for the model: why no command can run, and what the operator can do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    memory_bytes: int
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCommand:
    """A shell command with its limits. The sandbox service receives it as JSON, with these names."""

    command: str
    workspace: Path
    limits: SandboxLimits
    bounds: RunLimits
    network: bool = False
    attachments: Path | None = None
    """The folder that the command sees as `ATTACHMENTS`, once it exists."""
    skills: Mapping[str, Path] = field(default_factory=dict)
    """The folders that it sees in `SKILLS`, by name."""


async def run_sandboxed(command: SandboxCommand) -> ProcessResult:
    """Run `command` in a sandbox. Raises `SandboxUnavailable` if none can be made here."""
    argv = await asyncio.to_thread(
        bubblewrap_argv,
        command.command,
        command.workspace,
        command.limits,
        network=command.network,
        attachments=command.attachments,
        skills=command.skills,
    )
    with open_filter() as (options, descriptors):
        return await run_process(
            [*with_own_keyring(argv[:1]), *options, *argv[1:]],
            env=command_environment(WORKSPACE, "/tmp"),  # noqa: S108 - inside the sandbox.
            cwd=Path("/"),
            bounds=command.bounds,
            kill=kill_sandbox,
            watch=partial(watch_limits, limits=command.limits),
            descriptors=descriptors,
        )


@contextmanager
def open_filter() -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Yield bubblewrap's options for the seccomp filter, and the descriptor that they name."""
    program = filter_program()
    if program is None:
        yield (), ()
        return
    with os.fdopen(os.memfd_create("seccomp"), "wb+", buffering=0) as file:
        file.write(program)
        file.seek(0)  # Each command needs its own file, since bubblewrap reads from this position.
        yield ("--seccomp", str(file.fileno())), (file.fileno(),)


def with_own_keyring(argv: Sequence[str]) -> list[str]:
    """Return the arguments that run `argv`, which begins with an absolute path, with a new session keyring."""
    return [sys.executable, "-I", "-S", str(_SESSION_KEYRING), *argv]


def command_environment(workspace: str, home: str) -> dict[str, str]:
    """Return the environment of a command. It has nothing of our own, which may contain keys."""
    return {"PATH": PATH, "HOME": home, "PWD": workspace, "LANG": "C.UTF-8", "TERM": "dumb", "USER": "agent"}


def bubblewrap_argv(
    command: str,
    workspace: Path,
    limits: SandboxLimits,
    *,
    network: bool,
    attachments: Path | None = None,
    skills: Mapping[str, Path] | None = None,
) -> list[str]:
    """Return the arguments that run `command` in the sandbox. Raises `SandboxUnavailable`. Blocks: use a thread."""
    bwrap, *options = base_argv(network=network)
    options += tmpfs("/tmp", _TMP_BYTES)  # noqa: S108 - inside the sandbox.
    if attachments is not None:
        options += ["--ro-bind-try", str(attachments), ATTACHMENTS]
    for name, folder in (skills or {}).items():
        options += ["--ro-bind-try", str(folder), f"{SKILLS}/{name}"]
        if (folder / HIDDEN_IN_SKILLS).is_dir():
            hidden = f"{SKILLS}/{name}/{HIDDEN_IN_SKILLS}"
            options += ["--tmpfs", hidden, "--remount-ro", hidden]
    options += ["--bind", str(workspace.resolve()), WORKSPACE, "--chdir", WORKSPACE, "--remount-ro", "/"]
    return [bwrap, *options, "--", *prlimit_argv(command, limits, f"--nproc={limits.processes}")]


def base_argv(*, network: bool) -> list[str]:
    """Return bubblewrap with the options of every sandbox: the system's folders, and nothing that is writable.

    Raises `SandboxUnavailable` if no sandbox can be made here. Blocks: use a thread.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxUnavailable(_unavailable("bubblewrap is not installed"))
    options = [bwrap, *_working_options(bwrap)]
    if network:
        options += ["--share-net", *_read_only(_READABLE_WITH_NETWORK)]
    return options


def tmpfs(path: str, size: int) -> list[str]:
    """Return the options for an empty folder in memory, of at most `size` bytes."""
    return ["--size", str(size), "--tmpfs", path]


def prlimit_argv(command: str, limits: SandboxLimits, *more: str) -> list[str]:
    """Return the arguments that run `command` with limits that its processes inherit and cannot raise.

    The number of processes is not limited here: outside of a sandbox, the kernel counts all processes of the user.
    """
    # Commands get only idle CPU time, so that the daemon can always run and stop them.
    chrt = shutil.which("chrt")
    idle_priority = [chrt, "--idle", "0"] if chrt else []
    options = [f"--as={limits.memory_bytes}", f"--fsize={_MAX_FILE_BYTES}", "--core=0", *more]
    return [*idle_priority, find_prlimit(), *options, "--", "/bin/sh", "-c", command]


def find_prlimit() -> str:
    prlimit = shutil.which("prlimit")
    if prlimit is None:
        raise SandboxUnavailable(
            "Commands run only with limits, and this machine has no `prlimit`. The operator can install util-linux."
        )
    return prlimit


@cache  # A failure raises, so it is not cached.
def _working_options(bwrap: str) -> tuple[str, ...]:
    """Return the options for every command, after a test that they work here."""
    system: list[str] = []
    for name in SYSTEM_FOLDERS:
        path = Path("/", name)
        if path.is_symlink():
            system += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            system += ["--ro-bind", str(path), str(path)]
    # They name the keys of the daemon's user, also those of other sessions.
    key_lists = [path for path in ("/proc/keys", "/proc/key-users") if Path(path).exists()]
    hidden = [word for path in key_lists for word in ("--ro-bind", "/dev/null", path)]
    options = (
        # No network and no capabilities.
        *("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--ro-bind", "/usr", "/usr", *system, *_read_only(_READABLE)),
        # A /proc of the sandbox alone, and read-only: root could change sysctls through it.
        *("--proc", "/proc", *hidden, "--remount-ro", "/proc"),
        *("--dev", "/dev", *tmpfs("/dev/shm", _TMP_BYTES), "--remount-ro", "/dev"),  # noqa: S108 - inside the sandbox.
        *("--hostname", "sandbox"),
    )
    complaint = ""
    for strict in (("--disable-userns",), ()):  # bubblewrap before 0.8 does not know `--disable-userns`.
        try:
            with open_filter() as (filter_options, descriptors):
                test = subprocess.run(  # noqa: S603 - only our own arguments.
                    with_own_keyring([bwrap, *filter_options, *options, *strict, "--", "/bin/sh", "-c", ":"]),
                    env={},
                    capture_output=True,
                    timeout=_PROBE_TIMEOUT,
                    pass_fds=descriptors,
                    check=False,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            complaint = str(error)
            continue
        if test.returncode == 0:
            return (*options, *strict)
        complaint = test.stderr.decode(errors="replace").strip()[:200] or "it does not start"
    raise SandboxUnavailable(_unavailable(complaint))


def _unavailable(reason: str) -> str:
    return (
        f"Commands and programs run only in a sandbox, and this machine has none ({reason}). "
        "The operator can install bubblewrap and allow user namespaces."
    )


def _read_only(paths: tuple[str, ...]) -> list[str]:
    return [word for path in paths for word in ("--ro-bind-try", os.path.realpath(path), path)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxUsage:
    processes: int
    threads: int
    memory_bytes: int
    """What the processes have in memory. Pages that several of them share count for each."""


def read_usage(first: int) -> SandboxUsage | None:
    """Return what the sandbox with the first process `first` uses. None if it is still being set up. Raises `OSError`.

    Blocks: use a thread. It reads one small file per process.
    """
    proc = f"/proc/{first}/root/proc"
    if os.stat(proc).st_dev == os.stat("/proc").st_dev:  # noqa: PTH116 - as cheap as possible.
        return None  # This is still our own /proc.
    processes = threads = pages = 0
    for name in os.listdir(proc):  # noqa: PTH208 - names suffice.
        if name.isdigit():
            with suppress(OSError, IndexError), open(f"{proc}/{name}/stat", "rb") as file:  # noqa: PTH123 - see above.
                # The name of the program, in parentheses, may contain anything.
                fields = file.read().rpartition(b")")[2].split()
                processes += 1
                threads += int(fields[_THREADS])
                pages += int(fields[_RESIDENT_PAGES])
    return SandboxUsage(processes=processes, threads=threads, memory_bytes=pages * _PAGE_BYTES)


async def watch_limits(bwrap: int, limits: SandboxLimits) -> str:
    """Return when the sandbox of the process `bwrap` exceeds its limits, with the reason."""

    def exceeded() -> str:
        with suppress(OSError, IndexError, ValueError):  # Not started yet, or ended.
            usage = read_usage(first_process(bwrap))
            if usage and usage.processes > limits.processes:
                return f"more than {limits.processes} processes"
            if usage and usage.memory_bytes > limits.memory_bytes:
                return memory_reason(limits)
        return ""

    while True:
        if reason := await asyncio.to_thread(exceeded):
            return reason
        await asyncio.sleep(_WATCH_INTERVAL)


def memory_reason(limits: SandboxLimits) -> str:
    return f"more than {limits.memory_bytes // 1024**2} MB of memory"


def kill_sandbox(bwrap: int) -> None:
    """Kill the first process inside. The kernel then kills all others, and `bwrap` ends after them."""
    with suppress(OSError, IndexError, ValueError):  # It has ended.
        os.kill(first_process(bwrap), signal.SIGKILL)


def first_process(bwrap: int) -> int:
    """Return the first process inside. Raises `OSError` or `IndexError` if there is none, or not yet."""
    return int(Path(f"/proc/{bwrap}/task/{bwrap}/children").read_text().split()[0])

"""Which files and folders of this machine a program sees in its sandbox, and where."""

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.sandbox.bubblewrap import ATTACHMENTS, PATH, SYSTEM_FOLDERS, SandboxLimits, SandboxUnavailable, tmpfs

AGENT_HOME = "/home/agent"

_TMP = "/tmp"  # noqa: S108 - inside the sandbox.
_TMP_BYTES = 1024**3
_OWN_PLACES = ("/usr", "/etc", "/proc", "/dev", "/sys", _TMP, AGENT_HOME, ATTACHMENTS)
"""Folders that the sandbox makes itself. No folder of this machine may cover them."""
_KERNEL_FOLDERS = ("/proc", "/sys")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxedProgram:
    """A program, and everything that its sandbox contains."""

    argv: tuple[str, ...]
    """The program has an absolute path that exists inside."""
    env: Mapping[str, str] = field(repr=False)
    """Added to PATH, HOME, LANG, TERM and USER. It may contain keys, so it is on no command line and in no log."""
    path: tuple[str, ...] = ()
    """Folders in front of PATH."""
    cwd: Path
    writable: tuple[Path, ...]
    """Folders that the program sees at their own path, without links, and may change."""
    readable: tuple[Path, ...] = ()
    """Files and folders that it sees at their own path. Missing ones are left out. Inside of a writable folder, they
    are protected from changes."""
    hidden: tuple[Path, ...] = ()
    """Folders that are empty inside even if a folder above is shown: the data directory. A folder in them can be
    shown."""
    home: Path | None = None
    """The folder that it sees as `AGENT_HOME`. None: an empty one in memory."""
    attachments: Path | None = None
    """The folder that it sees as `ATTACHMENTS`, once it exists."""
    network: bool = False
    limits: SandboxLimits


def environment(program: SandboxedProgram) -> dict[str, str]:
    path = ":".join((*program.path, PATH))
    base = {"PATH": path, "HOME": AGENT_HOME, "LANG": "C.UTF-8", "TERM": "dumb", "USER": "agent"}
    return {**base, **program.env}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    options: list[str]
    """Of bubblewrap, for the folders of a program."""
    shown: dict[str, tuple[int, int]]
    """The device and the number of each file and folder that the program sees at its own path."""
    in_memory: list[str]
    """Folders inside whose files take memory."""


def lay_out(program: SandboxedProgram) -> Layout:
    """Check the folders of `program`. Raises `SandboxUnavailable` with a sentence. Blocks: use a thread."""
    _check_words(program)
    mounts: dict[str, list[str]] = {_TMP: tmpfs(_TMP, _TMP_BYTES), AGENT_HOME: tmpfs(AGENT_HOME, _TMP_BYTES)}
    if program.home is not None:
        mounts[AGENT_HOME] = ["--bind", str(_existing_folder(program.home)), AGENT_HOME]
    if program.attachments is not None:
        mounts[ATTACHMENTS] = ["--ro-bind-try", str(program.attachments), ATTACHMENTS]
    hidden = {path.resolve() for path in program.hidden if path.is_dir()}
    readable = {path.resolve() for path in program.readable if path.exists()} - {Path("/usr")}
    writable = {_real_folder(path) for path in program.writable}
    for path in readable | writable:
        _check_place(path, hidden)
    mounts |= {str(path): ["--ro-bind-try", str(path), str(path)] for path in readable}
    mounts |= {str(path): ["--bind", str(path), str(path)] for path in writable}
    covered = [str(path) for path in hidden if any(path.is_relative_to(shown) for shown in readable | writable)]
    mounts |= {path: tmpfs(path, 1) for path in covered}
    # A mount covers everything below it, so the outer folders come first.
    ordered = sorted(mounts, key=lambda target: len(Path(target).parts))
    options = [word for target in ordered for word in mounts[target]]
    options += _links([*program.readable, *program.writable], readable | writable)
    # The folders inside of a hidden one need their mount points before it becomes read-only.
    options += [word for path in covered for word in ("--remount-ro", path)]
    options += ["--chdir", str(_visible_folder(program.cwd, readable | writable))]
    return Layout(
        options=options,
        shown={str(path): identity(str(path)) for path in readable | writable},
        in_memory=[_TMP, "/dev/shm", *([] if program.home else [AGENT_HOME])],  # noqa: S108 - inside the sandbox.
    )


def _links(given: Iterable[Path], shown: set[Path]) -> list[str]:
    """Return options for the paths that lead to what is shown through links of this machine, so that they do inside."""
    options: list[str] = []
    visible = {*shown, Path("/usr"), Path("/etc"), *(Path("/", name) for name in SYSTEM_FOLDERS)}
    for path in sorted({path.absolute() for path in given}, key=lambda path: len(path.parts)):
        if path.resolve() in shown and not any(path.is_relative_to(place) for place in visible):
            options += ["--symlink", str(path.resolve()), str(path)]
            visible.add(path)
    return options


def identity(path: str) -> tuple[int, int]:
    found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - as cheap as possible.
    return found.st_dev, found.st_ino


def user_files() -> dict[str, bytes]:
    """Return the files inside that tell programs who they are. Node and git fail without them."""
    user, group = os.getuid(), os.getgid()
    others = {0: "root", 65_534: "nobody"}
    users = [f"agent:x:{user}:{group}:agent:{AGENT_HOME}:/bin/sh"]
    users += [f"{name}:x:{number}:{number}:{name}:/:/bin/sh" for number, name in others.items() if number != user]
    groups = [f"agent:x:{group}:", *(f"{name}:x:{number}:" for number, name in others.items() if number != group)]
    return {
        "/etc/passwd": "\n".join([*users, ""]).encode(),
        "/etc/group": "\n".join([*groups, ""]).encode(),
    }


def _check_words(program: SandboxedProgram) -> None:
    """Refuse a zero byte, behind which bubblewrap would read options, and characters that no file name can have."""
    folders = (program.cwd, *program.writable, *program.readable)
    words = (*program.argv, *program.path, *program.env, *program.env.values(), *map(str, folders))
    try:
        has_zero = any(b"\0" in os.fsencode(word) for word in words)
    except UnicodeEncodeError as mistake:
        raise SandboxUnavailable("The command of the program, or a variable, is not valid Unicode.") from mistake
    if has_zero:
        raise SandboxUnavailable("The command of the program, or a variable, contains a zero byte.")


def _existing_folder(path: Path) -> Path:
    resolved = path.resolve()
    if not resolved.is_dir():
        raise SandboxUnavailable(f"The folder {path} does not exist, so no program can work in it.")
    return resolved


def _real_folder(path: Path) -> Path:
    """Return a folder that programs may write to. Its last part must not be a link.

    An agent could have replaced a folder in its repository by a link since the caller checked it, and may do so at any
    moment. So the last part is never resolved: a link that appears after this check has another identity.
    """
    real = path.parent.resolve() / path.name
    try:
        mode = real.lstat().st_mode
    except FileNotFoundError:
        mode = 0
    if stat.S_ISLNK(mode):
        raise SandboxUnavailable(f"{path} is a link, so no program can work in it. Name the folder itself.")
    if not stat.S_ISDIR(mode):
        raise SandboxUnavailable(f"The folder {path} does not exist, so no program can work in it.")
    return real


def _check_place(path: Path, hidden: Iterable[Path]) -> None:
    for place in _OWN_PLACES:
        if Path(place).is_relative_to(path):
            raise SandboxUnavailable(
                f"The sandbox cannot show {path}: it has its own {place}. Name the folder inside that is needed."
            )
    if any(path.is_relative_to(place) for place in _KERNEL_FOLDERS):
        raise SandboxUnavailable(f"The sandbox cannot show {path}: it has its own kernel folders.")
    if path in hidden:
        raise SandboxUnavailable(f"The sandbox must not show {path}. Name the folder inside that is needed.")


def _visible_folder(cwd: Path, shown: Iterable[Path]) -> Path:
    if str(cwd) in {"/", _TMP, AGENT_HOME}:
        return cwd
    resolved = cwd.resolve()
    if not resolved.is_dir() or not any(resolved.is_relative_to(path) for path in shown):
        raise SandboxUnavailable(f"The folder {cwd} is not in the sandbox, so no program can work in it.")
    return resolved

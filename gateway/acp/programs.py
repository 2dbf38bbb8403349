"""Finds the program of a coding agent on this machine, and the folders that it needs inside its sandbox.

The sandbox contains `/usr` and nothing else of the machine, but people install these programs with npm, a version
manager or pip, mostly in their home. Only what the program consists of is made readable, never a home as a whole.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from config import AgentSettings
from gateway.acp.presets import Preset, effective
from gateway.sandbox.bubblewrap import SandboxLimits
from gateway.sandbox.program import SandboxedProgram, run_program

_SYSTEM = tuple(Path("/", name) for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64"))
"""Every sandbox contains these."""
_SHIMS = frozenset({"asdf", "mise", "nodenv", "proto-shim", "rtx", "snap", "volta-shim"})
"""Programs of version managers that find the real one by files in the user's home, which the sandbox lacks."""
_WHOLE_STORES = ("/nix/store",)
"""Folders whose programs use files all over the folder, and which contain nothing private."""
_PACKAGE_DEPTH = 3
_FEWEST_PARTS = 4
"""Of a folder that is made readable because it contains a link: `/opt` is too much, `/home/ada/pythons` is not."""
_FIRST_LINE_BYTES = 512
_LONGEST_SHIM = 8192
_VERSION_SECONDS = 15.0
_VERSION_BYTES = 2000
_VERSION_LIMITS = SandboxLimits(memory_bytes=2 * 1024**3, processes=128)
_SHIM_TARGET = re.compile(r'"\$basedir/([^"]+\.(?:c|m)?js)"')
"""The script that pnpm and others write for a program: `exec node "$basedir/../lib/gemini.js" "$@"`."""


class ProgramMissing(Exception):
    """Its text says why the program cannot be run, and what the operator can do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgram:
    argv: tuple[str, ...]
    """It starts with an absolute path."""
    path: tuple[str, ...] = ()
    """Folders to put in front of PATH in the sandbox, for the interpreter."""
    readable: tuple[Path, ...] = ()
    """What the sandbox must contain, besides the system's programs."""
    version: str | None = None
    """The version in the description of its npm package. None: only the program itself knows."""


def find_program(settings: AgentSettings, environ_path: str, *, private: Sequence[Path] = ()) -> AgentProgram:
    """Find the program of an agent in `environ_path`, the PATH of the daemon. Runs nothing. Blocks.

    Raises `ProgramMissing` if it is not installed, if it lies in one of the folders `private`, or if it needs a folder
    in its sandbox that contains one of them or the user's home.
    """
    preset = effective(settings)
    name, *arguments = preset.command
    folders = [each for each in environ_path.split(os.pathsep) if each.startswith("/")]
    fix = f"Install it with `{preset.install_command}`" if preset.packages else "Install it"
    if "/" in name:
        found = name if _is_executable(Path(name)) else None
        # A version manager puts its Node next to the programs that belong to it.
        folders = [str(Path(name).parent), *folders]
        where = f"{name} does not exist or cannot be executed"
        fix += ", or correct `command`."
    else:
        found = shutil.which(name, path=os.pathsep.join(folders) or os.devnull)
        folders = [*folders, str(Path(found).parent)] if found else folders
        where = f"`{name}` is not in PATH ({os.pathsep.join(folders) or 'which is empty'})"
        fix += ", or set `command` to its full path."
    if found is None:
        raise ProgramMissing(f"{preset.name} cannot be started: {where}. {fix}")
    for folder in private:
        if _resolve(Path(found)).is_relative_to(folder.resolve()):
            raise ProgramMissing(f"{found} lies in {folder}, where agents can change files. Install it elsewhere.")
    search = _Search(folders, (Path.home(), *private), settings.sandbox.readable)
    program = search.resolve(Path(found))
    return AgentProgram(
        argv=(*search.interpreter, str(program), *arguments),
        path=tuple(dict.fromkeys(search.path)),
        readable=_without_nested([*search.readable, *(each for each in preset.readable if not _is_system(each))]),
        version=_package_version(program),
    )


async def read_version(program: AgentProgram, preset: Preset, service: Path | None = None) -> str:
    """Return the version of a known program, or an empty string. It is run for that only if no file says it.

    It runs in a sandbox without a network. Raises `SandboxUnavailable`.
    """
    if program.version or not preset.packages:
        return program.version or ""
    without_arguments = program.argv[: len(program.argv) - len(preset.command) + 1]
    sandboxed = SandboxedProgram(
        argv=(*without_arguments, *preset.version_args),
        env=preset.env,
        path=program.path,
        cwd=Path("/"),
        writable=(),
        readable=program.readable,
        limits=_VERSION_LIMITS,
    )
    ended = await run_program(sandboxed, seconds=_VERSION_SECONDS, max_output=_VERSION_BYTES, service=service)
    match = re.search(r"\d+\.\d+[\w.+-]*", ended.output)
    return match[0] if match and not ended.exit_code else ""


class _Search:
    """Collects what a program needs while its links and its interpreter are followed."""

    def __init__(self, folders: Sequence[str], private: Sequence[Path], allowed: Sequence[Path]) -> None:
        self.readable: list[Path] = []
        self.path: list[str] = []
        self.interpreter: tuple[str, ...] = ()
        self._folders = list(folders)
        self._private = [each.resolve() for each in private]
        self._allowed = [each.resolve() for each in allowed]

    def resolve(self, program: Path) -> Path:
        """Return the file that is run for `program`, and collect what it needs."""
        file = _resolve(program)
        if file.name == "volta-shim":
            file = self._behind_volta(program)
        if file.name in _SHIMS:
            raise ProgramMissing(
                f"{program} belongs to the version manager {file.name.removesuffix('-shim')}, which cannot find the "
                "program inside the sandbox. Set `command` to the full path of the program itself."
            )
        first = _first_line(file)
        if first.startswith(b"#!") and (target := _shim_target(file)):
            return self.resolve(target)
        self._add(file)
        if first.startswith(b"#!"):
            self._add_interpreter(first[2:].decode(errors="replace").split(), file)
        return file

    def _behind_volta(self, shim: Path) -> Path:
        """Return the program that a shim of Volta would run, and put the Node that it would use in front of PATH."""
        home = shim.absolute().parent.parent
        try:
            entry = msgspec.json.decode((home / "tools" / "user" / "bins" / f"{shim.name}.json").read_bytes())
            package, node = str(entry["package"]), str(entry["platform"]["node"])
        except (OSError, msgspec.DecodeError, LookupError, TypeError):
            return _resolve(shim)
        self._folders.insert(0, str(home / "tools" / "image" / "node" / node / "bin"))
        return _resolve(home / "tools" / "image" / "packages" / package / "bin" / shim.name)

    def _add_interpreter(self, words: list[str], script: Path) -> None:
        if not words:
            return
        if Path(words[0]).name == "env":
            # `#!/usr/bin/env -S node --flag` and `#!/usr/bin/env NAME=value node` are possible too.
            name = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
            interpreter = shutil.which(name, path=os.pathsep.join(self._folders)) if name else None
            if interpreter is None:
                raise ProgramMissing(
                    f"{script} cannot be started: it needs `{name}`, which is not in PATH "
                    f"({os.pathsep.join(self._folders)}). Install it, or start Gatehouse with a PATH that contains it."
                )
            real = _resolve(Path(interpreter))
            if real.name in _SHIMS:
                raise ProgramMissing(
                    f"{script} cannot be started: the `{name}` in PATH belongs to the version manager "
                    f"{real.name.removesuffix('-shim')}, which does not work inside the sandbox. "
                    f"Start Gatehouse with a PATH in which the folder of the real `{name}` comes first."
                )
            # Inside, it is looked up again by its name, which a link to `nodejs` may not have.
            if not _is_system(real):
                self.path.append(str(real.parent if real.name == name else Path(interpreter).parent))
                if real.name != name:
                    self._add(Path(interpreter))
        else:
            interpreter = words[0]
            if not _is_executable(Path(interpreter)):
                raise ProgramMissing(
                    f"{script} cannot be started: its interpreter {interpreter} does not exist. Install it again."
                )
            if not _is_system(Path(interpreter)):
                # It is named without the links of its folder, which the sandbox may lack. A last link must stay: Python
                # finds its venv by that.
                folder = _resolve(Path(interpreter).parent)
                self.interpreter = (str(folder / Path(interpreter).name), *words[1:])
                self._add(folder / Path(interpreter).name)
                self.readable += (each for each in _link_folders(Path(interpreter)) if not self._is_private(each))
        self._add(_resolve(Path(interpreter)))

    def _add(self, file: Path) -> None:
        """Make everything readable that belongs to `file`."""
        if _is_system(file) or (file.exists() and any(map(file.is_relative_to, self._allowed))):
            return
        for folder in _roots(file, self._is_private):
            if not self._is_private(folder):
                self.readable += [] if _is_system(folder) else [folder]
            elif folder == file.parent:
                self.readable.append(file)  # A single file of a home is harmless.
            else:
                raise ProgramMissing(
                    f"{file} cannot be started: it needs the folder {folder} in its sandbox, which contains private "
                    "files. List what it needs of that folder in `sandbox.readable`, or install it elsewhere."
                )

    def _is_private(self, folder: Path) -> bool:
        return any(each.is_relative_to(folder.resolve()) for each in self._private)


def _roots(file: Path, is_private: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield the folders that a program or an interpreter consists of, by the layout that its path shows."""
    parts = file.parts
    for store in _WHOLE_STORES:
        if file.is_relative_to(store):
            yield Path(store)
            return
    if "Cellar" in parts:  # Homebrew: its programs use libraries of each other.
        yield Path(*parts[: parts.index("Cellar")])
        return
    # pnpm links the packages of a program from a folder beside it.
    for marker in (".pnpm", "node_modules"):
        if marker in parts:
            yield Path(*parts[: parts.index(marker) + 1])
            return
    prefix = file.parent.parent
    if (base := _python_base(prefix)) is not None:
        yield prefix
        yield base
    # An installation of Node contains npm too, which people who write code need.
    elif file.parent.name == "bin" and (
        (prefix / "include" / "node").is_dir() or any((prefix / "lib").glob("python3*/os.py"))
    ):
        yield prefix
    else:
        # A package that was not installed by npm has its dependencies beside its description.
        near = [folder for folder in file.parents[:_PACKAGE_DEPTH] if not is_private(folder)]
        yield next((folder for folder in near if (folder / "package.json").is_file()), file.parent)


def _link_folders(path: Path) -> Iterator[Path]:
    """Yield the folders with the links that the kernel follows to open `path`, which exists."""
    for part in [*reversed(path.parents), path]:
        if part.is_symlink():
            if len(part.parent.parts) >= _FEWEST_PARTS and not _is_system(part):
                yield part.parent
            target = Path(os.path.normpath(part.parent / part.readlink()))
            yield from _link_folders(target / path.relative_to(part))
            return


def _python_base(prefix: Path) -> Path | None:
    """Return the installation that a Python venv is made from. None: `prefix` is no venv."""
    try:
        text = (prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    values = dict(line.partition("=")[::2] for line in text.splitlines())
    home = next((value.strip() for key, value in values.items() if key.strip() == "home"), "/usr/bin")
    return _resolve(Path(home)).parent


def _first_line(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(_FIRST_LINE_BYTES).partition(b"\n")[0]
    except OSError:
        return b""  # A program that may be executed but not read is a binary.


def _shim_target(file: Path) -> Path | None:
    if file.stat().st_size > _LONGEST_SHIM:
        return None
    match = _SHIM_TARGET.search(file.read_text(encoding="utf-8", errors="replace"))
    target = file.parent / match[1] if match else None
    return target if target and target.is_file() else None


def _package_version(program: Path) -> str | None:
    """Return the version of the npm package that contains `program`."""
    for folder in program.parents:
        if folder.name == "node_modules":
            return None
        try:
            described = msgspec.json.decode((folder / "package.json").read_bytes())
        except (OSError, msgspec.DecodeError):
            continue
        # Folders inside a package may have a description without a version, which only says "module".
        if isinstance(described, dict) and isinstance(version := described.get("version"), str):
            return version
    return None


def _resolve(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself, before Python 3.13.
        raise ProgramMissing(
            f"{path} cannot be started: it leads to a file that does not exist. Install it again."
        ) from error


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _is_system(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _SYSTEM)


def _without_nested(paths: Iterable[Path]) -> tuple[Path, ...]:
    unique = list(dict.fromkeys(paths))
    return tuple(path for path in unique if not any(path != other and path.is_relative_to(other) for other in unique))

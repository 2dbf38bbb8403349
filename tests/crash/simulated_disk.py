"""Simulates the content of a disk after a power cut: synced data survives, unsynced data may or may not.

Data is durable once its file was synced after the write. Names are durable once their folder was synced. Unsynced
names are lost newest first, as on journaling file systems.
"""

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.crash.strace import Step

SECTOR = 512


@dataclass(slots=True)
class _Change:
    """A write, or the setting of a size, to the contents of a file."""

    ended: int
    at: int
    data: bytes | None
    is_durable: bool = False


@dataclass(slots=True)
class _File:
    is_folder: bool = False
    size: int = 0
    changes: list[_Change] = field(default_factory=list)


@dataclass(slots=True)
class _NameChange:
    """A created, renamed or (without `file`) removed name. `old_path` is the name before a rename."""

    ended: int
    path: str
    file: _File | None
    old_path: str = ""


class Loss:
    """Decides which unsynced changes survive. Seed 0 keeps none and seed 1 all; other seeds keep a random part."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)  # noqa: S311 - not for secrets
        self._keeps: bool | None = {0: False, 1: True}.get(seed)

    def names(self, count: int) -> int:
        """Return how many of the `count` pending name changes survive, counted from the oldest."""
        return self._dice.randrange(count + 1) if self._keeps is None else count * self._keeps

    def data(self, data: bytes) -> bytes:
        """Return the surviving part of a write: all, nothing, or its first sectors."""
        if self._keeps is not None:
            return data if self._keeps else b""
        kept = self._dice.choice([0, len(data), self._dice.randrange(len(data) + 1)])
        return data[: kept if kept < SECTOR else kept // SECTOR * SECTOR]

    def is_kept(self) -> bool:
        return self._dice.random() < 0.5 if self._keeps is None else self._keeps


class Disk:
    """Applies the steps of a trace that change files under `root`."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._now: dict[str, _File] = {}
        self._durable: dict[str, _File] = {}
        self._pending: list[_NameChange] = []

    def apply(self, step: Step) -> None:
        if not step.path.startswith(self._root):
            return
        match step.call:
            case "openat" if "O_CREAT" in step.flags and step.path not in self._now:
                self._name(step, _File())
            case "openat" if "O_TRUNC" in step.flags:
                self._resize(step, 0)
            case "mkdir":
                self._name(step, _File(is_folder=True))
            case "rename":
                self._name(step, self._now[step.old_path])
            case "link":
                self._name(replace(step, old_path=""), self._now[step.old_path])
            case "unlink" | "rmdir":
                self._name(step, None)
            case "write" | "pwrite64":
                self._write(step)
            case "ftruncate" | "fallocate":
                self._resize(step, step.number)
            case "fsync" | "fdatasync":
                self._sync(step)

    def _name(self, step: Step, file: _File | None) -> None:
        if step.old_path:
            del self._now[step.old_path]
        if file is None:
            self._now.pop(step.path, None)
        else:
            self._now[step.path] = file
        self._pending.append(_NameChange(step.ended, step.path, file, step.old_path))

    def _write(self, step: Step) -> None:
        file = self._now.get(step.path)
        if file is None:
            return  # The file was removed while it was open.
        at = file.size if step.call == "write" else step.number
        file.size = max(file.size, at + len(step.data))
        file.changes.append(_Change(step.ended, at, step.data))

    def _resize(self, step: Step, size: int) -> None:
        file = self._now.get(step.path)
        if file is not None:
            file.size = max(file.size, size) if step.call == "fallocate" else size
            file.changes.append(_Change(step.ended, file.size, None))

    def _sync(self, step: Step) -> None:
        """Mark changes as durable. A sync covers only the calls that ended before it began."""
        file = self._now.get(step.path)
        for change in file.changes if file else ():
            change.is_durable |= change.ended <= step.begun
        if file is None or file.is_folder or step.path == self._root:
            self._sync_names(step)

    def _sync_names(self, step: Step) -> None:
        covered = [
            number
            for number, change in enumerate(self._pending)
            if change.ended <= step.begun and str(Path(change.path).parent) == step.path
        ]
        # The file system writes its journal in order, so all earlier name changes are durable as well.
        last = covered[-1] + 1 if covered else 0
        for change in self._pending[:last]:
            _apply(self._durable, change)
        del self._pending[:last]

    def left(self, loss: Loss) -> dict[str, bytes | None]:
        """Return the state after a power cut now: the content by path, None for folders."""
        names = dict(self._durable)
        for change in self._pending[: loss.names(len(self._pending))]:
            _apply(names, change)
        return {path: None if file.is_folder else _contents(file, loss) for path, file in names.items()}


def _apply(names: dict[str, _File], change: _NameChange) -> None:
    if change.old_path:
        names.pop(change.old_path, None)
    if change.file is None:
        names.pop(change.path, None)
    else:
        names[change.path] = change.file


def _contents(file: _File, loss: Loss) -> bytes:
    content = bytearray()
    for change in file.changes:
        if change.data is None:
            if change.is_durable or loss.is_kept():
                del content[change.at :]
                content.extend(bytes(change.at - len(content)))
            continue
        data = change.data if change.is_durable else loss.data(change.data)
        if data:
            content.extend(bytes(max(0, change.at - len(content))))
            content[change.at : change.at + len(data)] = data
    return bytes(content)


def restore(left: dict[str, bytes | None], root: Path, place: Path) -> None:
    """Write the surviving files of `root` to the folder `place`."""
    for name in sorted(left):
        path = place / Path(name).relative_to(root)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = left[name]
        if content is None:
            path.mkdir(mode=0o700, exist_ok=True)
        else:
            path.touch(mode=0o600)
            path.write_bytes(content)

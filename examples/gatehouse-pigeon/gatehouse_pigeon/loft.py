"""The loft: the folder in which letters come and go. Everything here blocks, so it is called in threads."""

from pathlib import Path

__all__ = ["Loft"]

MAX_LETTER = 100_000
MAX_AT_ONCE = 100
_PRIVATE = 0o700


class Loft:
    def __init__(self, folder: Path) -> None:
        self._coming = folder / "in"
        self._going = folder / "out"
        self._refused = self._coming / "refused"

    def prepare(self) -> None:
        for folder in (self._coming, self._going, self._refused):
            folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)

    def letters(self) -> list[Path]:
        """Return the oldest letters; those of one instant go by their names."""
        found = [(letter.stat().st_mtime_ns, letter.name, letter) for letter in self._coming.glob("*.json")]
        return [letter for _, _, letter in sorted(found)[:MAX_AT_ONCE]]

    def open(self, letter: Path) -> bytes:
        """Return a letter, or as much of it as shows that it is too long."""
        with letter.open("rb") as file:
            return file.read(MAX_LETTER + 1)

    def forget(self, letter: Path) -> None:
        letter.unlink(missing_ok=True)

    def refuse(self, letter: Path) -> None:
        letter.replace(self._refused / letter.name)

    def let_out(self, key: str, letter: bytes) -> None:
        """Write a letter under another name first, so that nobody finds half of one."""
        unfinished = self._going / f"{key}.unfinished"
        unfinished.write_bytes(letter)
        unfinished.replace(self._going / f"{key}.json")

"""The loft: a folder with incoming and outgoing letters. All methods block, so call them in a thread."""

from pathlib import Path

MAX_LETTER_BYTES = 100_000
MAX_LETTERS_PER_POLL = 100
_PRIVATE = 0o700


class Loft:
    def __init__(self, folder: Path) -> None:
        self._incoming = folder / "in"
        self._outgoing = folder / "out"
        self._refused = self._incoming / "refused"

    def create_folders(self) -> None:
        for folder in (self._incoming, self._outgoing, self._refused):
            folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)

    def letters(self) -> list[Path]:
        """Return the oldest letters, in order. Letters of the same instant are ordered by name."""
        found = [(letter.stat().st_mtime_ns, letter.name, letter) for letter in self._incoming.glob("*.json")]
        return [letter for _, _, letter in sorted(found)[:MAX_LETTERS_PER_POLL]]

    def read(self, letter: Path) -> bytes:
        """Return the content of a letter, at most one byte more than is allowed."""
        with letter.open("rb") as file:
            return file.read(MAX_LETTER_BYTES + 1)

    def delete(self, letter: Path) -> None:
        letter.unlink(missing_ok=True)

    def refuse(self, letter: Path) -> None:
        letter.replace(self._refused / letter.name)

    def write(self, key: str, content: bytes) -> None:
        """Write a letter. It gets its final name only when it is complete, so a reader never sees half of it."""
        unfinished = self._outgoing / f"{key}.unfinished"
        unfinished.write_bytes(content)
        unfinished.replace(self._outgoing / f"{key}.json")

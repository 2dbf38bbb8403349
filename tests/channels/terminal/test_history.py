import os
from pathlib import Path

from prompt_toolkit.history import InMemoryHistory

from channels.terminal.history import LONGEST, open_history


async def _lines(path: Path) -> list[str]:
    return [line async for line in open_history(path).load()]


async def test_remembers_what_was_typed_newest_first(tmp_path: Path) -> None:
    history = open_history(tmp_path / "history")
    history.append_string("one")
    history.append_string("two\nlines")
    assert await _lines(tmp_path / "history") == ["two\nlines", "one"]


def test_is_private_from_birth_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        open_history(tmp_path / "history").append_string("secret")
    finally:
        os.umask(before)
    assert (tmp_path / "history").stat().st_mode & 0o777 == 0o600


async def test_takes_bytes_that_are_no_text(tmp_path: Path) -> None:
    open_history(tmp_path / "history").append_string("caf\udce9")
    assert await _lines(tmp_path / "history") == ["caf?"]


async def test_forgets_the_oldest_when_it_grows_too_long(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history = open_history(path)
    for number in range(12):
        history.append_string(f"{number} {'x' * (LONGEST // 10)}")
    numbers = [int(line.split()[0]) for line in await _lines(path)]
    assert numbers == list(range(11, 11 - len(numbers), -1))
    assert 1 < len(numbers) < 8
    assert path.stat().st_size <= LONGEST


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    assert isinstance(open_history(tmp_path / "missing" / "history"), InMemoryHistory)


def test_follows_no_symlink(tmp_path: Path) -> None:
    (tmp_path / "history").symlink_to(tmp_path / "elsewhere")
    assert isinstance(open_history(tmp_path / "history"), InMemoryHistory)
    assert not (tmp_path / "elsewhere").exists()

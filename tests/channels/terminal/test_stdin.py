import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from channels.terminal.errors import InputTooLong
from channels.terminal.stdin import LONGEST, read_all, read_lines


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


async def test_reads_a_pipe_to_its_end(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"one\n")
    os.write(pipe[1], b"two\n")
    os.close(pipe[1])
    assert await read_all(pipe[0]) == "one\ntwo\n"


async def test_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_text("from a file")
    with path.open() as file:
        assert await read_all(file.fileno()) == "from a file"


async def test_replaces_what_is_not_utf8(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"caf\xe9\n\xf0\x9f")
    os.close(pipe[1])
    assert [line async for line in read_lines(pipe[0])] == ["caf\ufffd", "\ufffd"]


async def test_gives_a_line_as_soon_as_it_has_come(pipe: tuple[int, int]) -> None:
    lines = read_lines(pipe[0])
    os.write(pipe[1], b"first\r\nsec")
    async with asyncio.timeout(60):
        assert await anext(lines) == "first"
    os.write(pipe[1], b"ond")
    os.close(pipe[1])
    assert await anext(lines) == "second"
    with pytest.raises(StopAsyncIteration):
        await anext(lines)


@pytest.fixture
def endless() -> Iterator[int]:
    with Path("/dev/zero").open("rb") as zeros:
        yield zeros.fileno()


async def test_does_not_read_without_end(endless: int) -> None:
    with pytest.raises(InputTooLong, match=f"{LONGEST // 1024} KiB"):
        await read_all(endless)
    with pytest.raises(InputTooLong):
        await anext(read_lines(endless))


async def test_can_be_given_up_while_nothing_comes(pipe: tuple[int, int]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await read_all(pipe[0])

"""The replay of the journal after a power cut has lost or damaged the end of a transcript."""

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.sessions import entries as e
from gateway.sessions.storage.codec import decode, stamp
from gateway.sessions.storage.disk import Disk
from gateway.sessions.storage.journal import replay
from tests.sessions.conftest import SCOPE

NOW = datetime(2026, 3, 1, tzinfo=UTC)
COUNT = 8
LINES = [stamp(e.User(content=f"number {seq}", sender="ann"), seq=seq, now=NOW)[1] for seq in range(1, COUNT + 1)]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    disk = Disk(tmp_path)
    disk.prepare()
    return disk


def noted(first: int) -> list[tuple[int, bytes]]:
    return list(enumerate(LINES[first - 1 :], first))


def damaged(line: bytes) -> bytes:
    """Return a line with zeros in its middle."""
    third = len(line) // 3
    return line[:third] + bytes(third) + line[2 * third :]


ENDS = {
    "whole": LINES[3:],
    "lost": [],
    "cut between": LINES[3:6],
    "cut within": [*LINES[3:6], LINES[6][:20]],
    "without its newline": [*LINES[3:6], LINES[6].removesuffix(b"\n")],
    "with a hole": [LINES[3], damaged(LINES[4]), *LINES[5:]],
    "with a hole at the end": [*LINES[3:7], damaged(LINES[7])],
    "with a hole over lines": [LINES[3], LINES[4][:20] + bytes(90) + LINES[6][30:], LINES[7]],
    "with zeros": [bytes(300)],
    "with a line missing": [*LINES[3:5], *LINES[6:]],
    "with a line twice": [LINES[3], LINES[4], LINES[4], *LINES[5:]],
    "out of order": [LINES[3], LINES[5], LINES[4], *LINES[6:]],
    "with other words": [LINES[3], LINES[4].replace(b"number", b"numero"), *LINES[5:]],
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("first", [1, 2, 4])
def test_a_replay_makes_the_transcript_equal_to_the_journal(disk: Disk, end: str, first: int) -> None:
    path = disk.path(SCOPE)
    path.write_bytes(b"".join([*LINES[:3], *ENDS[end]]))
    path.chmod(0o600)
    replay(disk, SCOPE, noted(first))
    assert path.read_bytes() == b"".join(LINES)
    assert replay(disk, SCOPE, noted(first)) == 0


def test_a_lost_transcript_is_rebuilt_from_the_journal(disk: Disk) -> None:
    assert replay(disk, SCOPE, noted(1)) == COUNT
    assert disk.path(SCOPE).read_bytes() == b"".join(LINES)


@pytest.mark.parametrize("damage", ["missing", "empty", "random", "link"])
def test_the_end_of_a_lost_transcript_is_rebuilt_from_the_journal(disk: Disk, damage: str) -> None:
    path = disk.path(SCOPE)
    match damage:
        case "empty":
            path.touch()
        case "random":
            path.write_bytes(random.Random(7).randbytes(300))  # noqa: S311 - any bytes will do.
        case "link":
            path.symlink_to("/dev/null")
    replay(disk, SCOPE, noted(4))
    header, *others = path.read_bytes().splitlines(keepends=True)
    found = decode(header)
    assert isinstance(found, e.Header)
    assert (found.key, found.number) == (SCOPE, 1)
    assert others == LINES[3:]
    assert replay(disk, SCOPE, noted(4)) == 0


def test_a_replay_keeps_entries_that_are_newer_than_the_journal(disk: Disk) -> None:
    disk.path(SCOPE).write_bytes(b"".join(LINES))
    assert replay(disk, SCOPE, noted(4)[:2]) == 0
    assert disk.path(SCOPE).read_bytes() == b"".join(LINES)


def test_a_replay_saves_the_bytes_that_it_replaces(disk: Disk) -> None:
    other = LINES[4].replace(b"number", b"numero")
    disk.path(SCOPE).write_bytes(b"".join([*LINES[:4], other]))
    replay(disk, SCOPE, noted(4))
    assert other in disk.path(SCOPE).with_suffix(".jsonl.corrupt").read_bytes()


def test_a_replaced_file_is_fsynced_by_name_before_the_journal_is_dropped(disk: Disk) -> None:
    """Otherwise another power cut could bring back the damaged file, and the journal would be empty."""
    disk.path(SCOPE).write_bytes(b"".join([*LINES[:4], bytes(99)]))
    replay(disk, SCOPE, noted(4))
    disk.begin_sync()
    assert disk.end_sync({}) == {SCOPE}


@pytest.mark.parametrize("seed", range(30))
def test_a_replay_repairs_any_damage_at_the_end(disk: Disk, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - not for secrets
    whole = b"".join(LINES)
    spoiled = bytearray(whole[: dice.randrange(len(LINES[0]), len(whole))])
    for _ in range(dice.randrange(3)):
        at = dice.randrange(len(LINES[0]), len(whole))
        spoiled[at : at + 40] = bytes(len(spoiled[at : at + 40]))
    disk.path(SCOPE).write_bytes(spoiled)
    replay(disk, SCOPE, noted(2))
    assert disk.path(SCOPE).read_bytes() == whole

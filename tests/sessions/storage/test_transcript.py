import os
import stat
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import pytest

from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.keys import file_name
from gateway.sessions.storage.codec import NewerTranscript, UnreadableTranscript
from gateway.sessions.storage.disk import TranscriptWriter
from gateway.sessions.storage.transcript import read, set_aside
from tests.sessions.samples import SCOPE, dialogue, encoded, header, sealed

HI = e.User(content="hi 👋\u2028 é")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / file_name(SCOPE)


def append(path: Path, data: bytes, *, is_new: bool) -> None:
    writer = TranscriptWriter(path, is_new=is_new)
    try:
        writer.append(data)
    finally:
        writer.close()


def torn_half(path: Path) -> bytes:
    kept = path.with_name(f"{path.name}.corrupt")
    return kept.read_bytes() if kept.exists() else b""


def lines_of(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def test_appended_entries_are_read_back(path: Path) -> None:
    append(path, encoded([header(), HI]), is_new=True)
    assert read(path).entries == sealed([header(), HI])
    assert read(path).size == path.stat().st_size


SAID: list[Entry] = [
    header(),
    e.Activated(key=SCOPE, epoch=1, highest_number=1),
    HI,
    e.ToolUse(tool_use_id="1", name="x", input={"a": "\x01é"}),
]


def test_a_file_cut_anywhere_loses_only_the_torn_line(tmp_path: Path) -> None:
    whole = encoded(SAID)
    ends = list(accumulate(map(len, lines_of(whole))))
    for cut in range(whole.index(b"\n") + 1, len(whole) + 1):
        path = tmp_path / str(cut) / file_name(SCOPE)
        path.parent.mkdir()
        path.write_bytes(whole[:cut])
        kept = read(path).entries
        # A line that lacks nothing but its newline is whole.
        assert len(kept) == sum(end - 1 <= cut for end in ends)
        assert kept == sealed(SAID)[: len(kept)]
        lines = b"".join(lines_of(whole)[: len(kept)])
        assert path.read_bytes() == lines
        assert torn_half(path).removesuffix(b"\n") == whole[len(lines) : cut]


def test_an_append_after_a_torn_line_starts_a_new_line(path: Path) -> None:
    whole = encoded([*SAID, HI])
    path.write_bytes(whole[:-9])
    append(path, lines_of(whole)[-1], is_new=False)
    assert read(path).entries == sealed([*SAID, HI])


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: b"\x00" * len(line[:-1]) + b"\n",
        lambda line: line.replace(b'"type"', b'"tYpe"'),
        lambda line: line.replace(b":", b"\xff", 1),
        lambda line: line[:-1] + line,
        lambda line: line[:-2] + b"x" * 5_000_000 + b"\n",
        lambda line: line.replace(b'"content":', b'"content":7,"was":'),
        lambda line: line[:0] + b"\n",
    ],
    ids=["zeroed", "renamed", "flipped", "glued", "huge", "wrong type", "empty"],
)
def test_a_damaged_line_costs_that_line_only(path: Path, damage: Callable[[bytes], bytes]) -> None:
    said: list[Entry] = [*SAID[:2], HI, e.User(content="damaged"), e.User(content="after")]
    lines = lines_of(encoded(said))
    damaged = b"".join([*lines[:3], damage(lines[3]), lines[4]])
    path.write_bytes(damaged)
    reading = read(path)
    expected = sealed(said)
    assert reading.entries == [*expected[:3], expected[4]]
    assert reading.damaged == 1
    assert path.read_bytes() == damaged, "the original is kept as it is"


@pytest.mark.parametrize("damage", [b"", b"\x00\x00", b'{"type":"session"}'])
def test_a_damaged_header_does_not_cost_the_session(path: Path, damage: bytes) -> None:
    lines = lines_of(encoded(SAID))
    path.write_bytes(b"".join([damage + b"\n", *lines[1:]]))
    reading = read(path)
    found = reading.entries[0]
    assert isinstance(found, e.Header)
    assert (found.key, found.number, found.agent) == (SCOPE, 1, "main")
    assert reading.entries[1:] == sealed(SAID)[1:]


def test_an_entry_of_a_newer_version_is_kept_and_skipped(path: Path) -> None:
    dream = b'{"type":"dream","seq":5,"ts":"2026-03-01T00:00:00Z"}\n'
    path.write_bytes(encoded(SAID) + dream)
    assert [entry.seq for entry in read(path).entries] == [1, 2, 3, 4, 5]
    assert path.read_bytes().endswith(dream)


def test_a_line_written_twice_counts_once(path: Path) -> None:
    lines = lines_of(encoded(SAID))
    path.write_bytes(b"".join([*lines, *lines[2:]]))
    assert read(path).entries == sealed(SAID)


def test_two_lines_that_claim_one_seq_are_both_kept(path: Path) -> None:
    lines = lines_of(encoded(SAID))
    path.write_bytes(b"".join([*lines, lines[2].replace(b"hi", b"ho")]))
    assert len(read(path).entries) == len(SAID) + 1


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"nonsense\n", b"\xff" * 100, encoded([header(key=f"{SCOPE}#2", number=2), HI]), encoded([HI])],
    ids=["empty", "blank", "text", "binary", "another session", "no header"],
)
def test_a_file_without_its_session_is_unreadable(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UnreadableTranscript):
        read(path)


def test_a_header_that_contradicts_its_key_is_corrected(path: Path) -> None:
    path.write_bytes(encoded([header(number=5)]))
    found = read(path).entries[0]
    assert isinstance(found, e.Header)
    assert found.number == 1


def test_a_newer_format_is_refused_and_left_untouched(path: Path) -> None:
    content = encoded([header(version=2), HI]) + b'{"torn'
    path.write_bytes(content)
    with pytest.raises(NewerTranscript, match="newer Gatehouse"):
        read(path)
    assert path.read_bytes() == content


def test_setting_a_file_aside_overwrites_no_other(path: Path) -> None:
    for content in (b"one", b"two", b"three"):
        path.write_bytes(content)
        set_aside(path)
    assert sorted(file.read_bytes() for file in path.parent.iterdir()) == [b"one", b"three", b"two"]
    assert not path.exists()


def test_a_new_transcript_does_not_overwrite_another_file(path: Path) -> None:
    path.write_bytes(b"something")
    append(path, encoded(SAID), is_new=True)
    assert read(path).entries == sealed(SAID)
    assert path.with_name(f"{path.name}.corrupted").read_bytes() == b"something"


def test_a_missing_transcript_is_not_created_again_by_an_append(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        append(path, encoded([HI]), is_new=False)
    assert not path.exists()


def test_a_link_in_place_of_a_transcript_is_not_followed(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_bytes(b"")
    path.symlink_to(target)
    with pytest.raises(OSError, match="It is a symbolic link"):
        append(path, encoded(SAID), is_new=False)
    append(path, encoded(SAID), is_new=True)
    assert target.read_bytes() == b""
    assert not path.is_symlink()
    assert path.with_name(f"{path.name}.corrupted").is_symlink()


def test_files_are_private_under_any_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        append(path, encoded(SAID) + b'{"torn', is_new=True)
        read(path)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    assert len(list(path.parent.iterdir())) == 2


def test_a_long_transcript_is_read_whole(path: Path) -> None:
    append(path, encoded(dialogue(500)), is_new=True)
    with path.open("ab") as file:
        file.write(b'{"type":"user","content":"' + b"x" * 200_000)
    reading = read(path)
    assert reading.entries == sealed(dialogue(500))
    assert reading.is_torn

"""The memory files of a scope: changes, limits, edits by hand, damage, and the notes of older versions."""

import json
import os
from pathlib import Path

import pytest

from gateway.errors import Refused
from gateway.memory import Archived, MemoryStore, Source, Statement
from gateway.memory.statement import Other
from gateway.memory.store import MAX_BYTES, MAX_STATEMENTS, _File, delete_leftovers

DAY = "2026-11-19"


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return MemoryStore(tmp_path / "memory" / "scope")


def said(text: str, session: int = 1, seq: int = 2) -> Statement:
    return Statement(text=text, sources=(Source(session, seq),))


def texts(store: MemoryStore) -> list[str]:
    return [each.text for each in store.read().statements]


def test_statements_are_readable_lines_with_their_sources(store: MemoryStore) -> None:
    store.add([said("Ada lives in Lisbon.", 3, 14)], day=DAY, archived=Archived(session=3, id="x", seq=20))
    file = store.folder / f"{DAY}.md"
    assert file.read_text() == (
        f"# {DAY}\n\n- [1] Ada lives in Lisbon. (session 3, seq 14)\n<!-- archived: session 3 (x) to seq 20 -->\n"
    )
    assert file.stat().st_mode & 0o777 == 0o600
    assert store.folder.stat().st_mode & 0o777 == 0o700


def test_what_is_known_only_gets_another_source(store: MemoryStore) -> None:
    store.add([said("Ada lives in Lisbon.", 3, 14)], day="2026-11-18")
    added = store.add([said("ada lives in lisbon", 5, 2), said("Likes tea.", 5, 4)], day=DAY)
    assert added.new == 1
    first, second = store.read().statements
    assert (first.text, first.sources, first.file) == (
        "Ada lives in Lisbon.",
        (Source(3, 14), Source(5, 2)),
        "2026-11-18.md",
    )
    assert (second.text, second.number, second.day) == ("Likes tea.", 2, DAY)


def test_archiving_again_replaces_the_outline(store: MemoryStore) -> None:
    outline = Statement(text='"Trip", it began: "hello"', sources=(Source(3, 2),), is_outline=True)
    store.add(
        [outline, said("other", 4)], day="2026-11-18", archived=Archived(session=3, id="x", seq=9, is_outline=True)
    )
    assert store.read().archived_upto("x") == Archived(session=3, id="x", seq=9, is_outline=True)
    store.add([said("Ada plans a trip.", 3, 2)], day=DAY, archived=Archived(session=3, id="x", seq=9))
    assert texts(store) == ["other", "Ada plans a trip."]
    assert store.read().archived_upto("x") == Archived(session=3, id="x", seq=9)
    assert store.read().archived_upto("y") is None


def test_a_number_is_never_used_again(store: MemoryStore) -> None:
    store.add([said("one"), said("two")], day=DAY)
    assert store.forget(2).text == "two"
    store.add([said("three")], day="2026-11-20")
    assert [each.number for each in store.read().statements] == [1, 3]
    with pytest.raises(Refused, match="no statement 2"):
        store.forget(2)


def test_a_statement_can_be_changed(store: MemoryStore) -> None:
    store.add([said("Ada lives in Lisbon.", 3, 14)], day=DAY)
    assert store.edit(1, " Ada lives\n\nin Porto. ").text == "Ada lives in Lisbon."
    assert store.read().statements[0].text == "Ada lives\nin Porto."
    assert store.read().statements[0].sources == (Source(3, 14),)
    with pytest.raises(Refused, match="characters"):
        store.edit(1, " ")
    with pytest.raises(Refused, match="no statement 9"):
        store.edit(9, "x")


def test_an_empty_memory_refuses_changes(store: MemoryStore) -> None:
    with pytest.raises(Refused, match="nothing in the memory"):
        store.forget(1)
    assert not store.folder.exists()


def test_lines_of_a_person_are_kept_and_get_numbers(store: MemoryStore) -> None:
    store.add([said("one")], day=DAY)
    file = store.folder / f"{DAY}.md"
    file.write_text(f"{file.read_text()}\n## My own\n- by hand\nplain line\n- [1] copied\n")
    (store.folder / "recipes.md").write_text("# Recipes\n\n- cake\n")
    assert sorted(texts(store)) == ["by hand", "cake", "copied", "one", "plain line"]
    memory = store.numbered()
    assert {each.text: each.number for each in memory.statements} == {
        "one": 1,
        "by hand": 2,
        "plain line": 3,
        "copied": 4,
        "cake": 5,
    }
    assert "## My own" in file.read_text()
    store.forget(4)
    assert "cake" in texts(store)


class Overtaken(MemoryStore):
    """A store whose first change is overtaken: a person saves the file after it was read."""

    saved = False

    def _files(self) -> dict[str, _File]:
        files = super()._files()
        if not self.saved:
            file = self.folder / f"{DAY}.md"
            file.write_text(f"{file.read_text()}- by hand\n")
            self.saved = True
        return files


def test_a_file_that_is_saved_during_a_change_is_read_again(store: MemoryStore) -> None:
    store.add([said("one")], day=DAY)
    Overtaken(store.folder).add([said("two")], day=DAY)
    assert sorted(texts(store)) == ["by hand", "one", "two"]


class OvertakenByWrite(MemoryStore):
    """A store whose first change is overtaken while the new content is on its way to the disk."""

    saved = False

    def _files(self) -> dict[str, _File]:
        files = super()._files()
        if not self.saved:
            files[f"{DAY}.md"].parts.append(Saves(line="", store=self))
        return files


class Saves(Other, frozen=True, kw_only=True):
    """A line that saves its file by hand when it is rendered."""

    store: OvertakenByWrite

    def rendered(self) -> str:
        with (self.store.folder / f"{DAY}.md").open("a") as file:
            file.write("- by hand\n")
        self.store.saved = True
        return self.line


def test_a_file_that_is_saved_while_it_is_written_is_read_again(store: MemoryStore) -> None:
    store.add([said("one")], day=DAY)
    OvertakenByWrite(store.folder).add([said("two")], day=DAY)
    assert sorted(texts(store)) == ["by hand", "one", "two"]


def test_only_damaged_lines_are_lost_and_a_copy_is_kept(store: MemoryStore) -> None:
    store.add([said("one")], day=DAY)
    file = store.folder / f"{DAY}.md"
    damaged = file.read_bytes() + b"- caf\xe9\n- two\n"
    file.write_bytes(damaged)
    assert texts(store) == ["one", "two"]
    (problem,) = store.read().problems
    assert "not text" in problem
    assert file.read_bytes() == damaged
    store.add([said("three")], day=DAY)
    assert texts(store) == ["one", "two", "three"]
    (problem,) = store.read().problems
    assert f"{DAY}.md.corrupted" in problem
    assert (store.folder / f"{DAY}.md.corrupted").read_bytes() == damaged


def test_what_is_not_a_file_is_reported_and_left_alone(store: MemoryStore) -> None:
    store.add([said("one")], day="2026-11-18")
    os.mkfifo(store.folder / "pipe.md")
    (store.folder / "link.md").symlink_to("/etc/hostname")
    (store.folder / "large.md").write_bytes(b"x" * 1_048_577)
    assert texts(store) == ["one"]
    assert [problem.split()[0] for problem in store.read().problems] == ["large.md", "link.md", "pipe.md"]


def test_the_oldest_statements_make_room(store: MemoryStore) -> None:
    store.folder.mkdir(parents=True)
    lines = [f"- [{number}] statement {number}" for number in range(1, MAX_STATEMENTS + 1)]
    (store.folder / "2026-01-01.md").write_text("\n".join(lines))
    assert store.add([said("newest")], day=DAY).dropped == 1
    assert (texts(store)[0], texts(store)[-1], len(texts(store))) == ("statement 2", "newest", MAX_STATEMENTS)


def test_the_size_of_a_memory_is_limited(store: MemoryStore) -> None:
    store.add([said(f"{number} {'x' * 2_000}") for number in range(300)], day=DAY)
    assert (store.folder / f"{DAY}.md").stat().st_size < MAX_BYTES + 1_000
    assert texts(store)[-1].startswith("299 ")


def test_files_without_statements_are_merged(store: MemoryStore) -> None:
    store.add([said("one")], day="2026-11-18", archived=Archived(session=1, id="x", seq=3))
    store.forget(1)
    store.add([said("two")], day=DAY)
    assert [path.name for path in store.folder.iterdir()] == [f"{DAY}.md"]
    assert store.read().archived_upto("x") is not None
    assert [each.number for each in store.read().statements] == [2]


def test_a_deleted_session_takes_its_statements_along(store: MemoryStore) -> None:
    store.add([said("secret", 3), said("public", 3)], day="2026-11-18", archived=Archived(session=3, id="x", seq=9))
    store.add([said("public", 4), said("other", 4)], day=DAY)
    damaged = store.folder / f"{DAY}.md.corrupted"
    damaged.write_bytes(b"- [8] secret\xff (session 3, seq 2)\n- [9] mine\xff\n")
    store.forget_session(3)
    assert texts(store) == ["public", "other"]
    assert store.read().archived_upto("x") is None
    assert damaged.read_bytes() == b"- [9] mine\xff\n"
    assert not any(b"secret" in path.read_bytes() for path in store.folder.iterdir())


def test_a_session_that_has_got_another_number_takes_its_statements_along(store: MemoryStore) -> None:
    store.add([said("secret", 3)], day=DAY, archived=Archived(session=3, id="x", seq=9))
    store.add([said("other", 5)], day=DAY, archived=Archived(session=5, id="y", seq=9))
    store.forget_session(5, "x")
    assert texts(store) == ["other"]


def test_what_is_forgotten_leaves_damaged_files_that_were_kept(store: MemoryStore) -> None:
    store.add([said("first\nsecret", 3), said("other", 5), said("hidden", 6)], day=DAY)
    file = store.folder / f"{DAY}.md"
    file.write_bytes(file.read_bytes() + b"- \xff damaged\n")
    copy = store.folder / f"{DAY}.md.corrupted"
    store.forget(3)
    assert b"hidden" not in copy.read_bytes()
    assert b"secret" in copy.read_bytes()
    store.forget_session(3)
    assert copy.read_bytes().splitlines()[2:] == [b"- [2] other (session 5, seq 2)", b"- \xff damaged"]


def test_files_that_a_crash_has_cut_are_deleted_and_those_of_editors_stay(store: MemoryStore, tmp_path: Path) -> None:
    delete_leftovers(tmp_path)
    store.add([said("one")], day=DAY)
    cut = [f".{DAY}.md.in2oxyar", f".{DAY}.md.corrupted-2.a_b0c1d2", ".scope.jsonl.abcdefgh"]
    others = [f".{DAY}.md.swp", ".notes", f".#{DAY}.md"]
    for name in (*cut, *others):
        (store.folder.parent / name).write_text("half")
    delete_leftovers(tmp_path)
    assert sorted(path.name for path in store.folder.parent.glob(".*")) == sorted(others)
    assert texts(store) == ["one"]


def test_an_outline_of_the_rest_keeps_up_to_where_a_model_has_read_a_session(store: MemoryStore) -> None:
    store.add([said("one", 3)], day=DAY, archived=Archived(session=3, id="x", seq=9))
    for seq in (15, 20):
        outline = Statement(text=f"to {seq}", sources=(Source(3, 10),), is_outline=True)
        store.add([outline], day=DAY, archived=Archived(session=3, id="x", seq=seq, is_outline=True))
    memory = store.read()
    assert memory.archived_upto("x", by_model=True) == Archived(session=3, id="x", seq=9)
    assert memory.archived_upto("x") == Archived(session=3, id="x", seq=20, is_outline=True)
    assert texts(store) == ["one", "to 20"]
    store.add([said("two", 3)], day=DAY, archived=Archived(session=3, id="x", seq=20))
    assert store.read().archived == (Archived(session=3, id="x", seq=20),)
    assert texts(store) == ["one", "two"]


def test_statements_of_an_older_session_of_the_same_number_stay(store: MemoryStore) -> None:
    store.add([said("long ago", 1)], day="2025-01-01")
    store.add([said("today", 1)], day=DAY)
    store.forget_session(1, since=DAY)
    assert texts(store) == ["long ago"]


def notes(store: MemoryStore, *lines: str) -> Path:
    old = store.folder.with_name("scope.jsonl")
    old.parent.mkdir(exist_ok=True)
    old.write_text("".join(f"{line}\n" for line in lines))
    return old


def test_notes_of_an_older_version_are_taken_over_once(store: MemoryStore) -> None:
    lines = [json.dumps({"ts": f"2026-03-0{day}T11:00:05Z", "text": f"a\nb\u2028{day}"}) for day in (1, 2)]
    old = notes(store, *lines)
    assert texts(store) == ["a\nb\u20281", "a\nb\u20282"]
    assert not old.exists()
    # A crash came before the old file was deleted.
    notes(store, *lines)
    assert [(each.text, each.day) for each in store.read().statements] == [
        ("a\nb\u20281", "2026-03-01"),
        ("a\nb\u20282", "2026-03-02"),
    ]
    assert not old.exists()


def test_damaged_notes_are_kept_aside(store: MemoryStore) -> None:
    old = notes(store, '{"ts": "2026-03-01T11:00:05Z", "text": "tea"}', '{"ts": "2026-03-01T11:0')
    content = old.read_bytes()
    assert texts(store) == ["tea"]
    assert not old.exists()
    assert (store.folder / "scope.jsonl.corrupted").read_bytes() == content
    assert "scope.jsonl.corrupted" in store.read().problems[0]

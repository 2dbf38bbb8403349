import json
import os
from pathlib import Path

import pytest

from gateway.sessions import index
from gateway.sessions.index import EMPTY_SCOPE, IndexContents, Scope, SessionIndex
from gateway.sessions.keys import session_key
from gateway.sessions.session import fold
from tests.sessions.samples import SCOPE, START, dialogue, header, sealed


def scope(sessions: int) -> Scope:
    made = EMPTY_SCOPE
    for number in range(1, sessions + 1):
        key = session_key(SCOPE, number)
        made = made.with_session(key, fold(sealed([header(key, number)])), is_active=True)
    return made


def write(path: Path, *scopes: tuple[str, Scope]) -> None:
    index.write(path, [(name, index.encode_scope(made)) for name, made in scopes], (), os.fsync)


@pytest.mark.parametrize("names", [(), ("one",), ("one", 'tw"o', "thrée")])
def test_an_index_is_read_back_unchanged(tmp_path: Path, names: tuple[str, ...]) -> None:
    path = tmp_path / "index.json"
    write(path, *((name, scope(3)) for name in names))
    assert index.read(path, START) == IndexContents(scopes={name: scope(3) for name in names})


def test_an_index_has_the_documented_fields(tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    write(path, (SCOPE, scope(3)))
    told = json.loads(path.read_bytes())
    assert told["version"] == 1
    assert told["scopes"][SCOPE]["active_session_key"] == f"{SCOPE}#3"
    assert told["scopes"][SCOPE]["ordered_sessions"] == [f"{SCOPE}#3", f"{SCOPE}#2", SCOPE]
    assert told["scopes"][SCOPE]["updated_at"].endswith("Z")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\0" * 100, b'{"version":1,"scopes":{"a":7}}', b'{"version":2,"scopes":{}}']
)
def test_a_bad_index_is_set_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "index.json"
    path.write_bytes(content)
    assert index.read(path, START) is None
    assert [file.name for file in tmp_path.iterdir()] == ["index.json.corrupt-20260301T000000.000000Z"]
    assert next(tmp_path.iterdir()).read_bytes() == content


def test_a_missing_index_is_not_an_error(tmp_path: Path) -> None:
    assert index.read(tmp_path / "index.json", START) is None


def test_a_scope_without_its_active_session_has_none_and_keeps_its_numbers() -> None:
    left = scope(3).without(f"{SCOPE}#3")
    assert left.active_session_key is None
    assert left.ordered_sessions == (f"{SCOPE}#2", SCOPE)
    assert (left.highest_number, left.epoch) == (3, 3)


def test_a_changed_session_keeps_its_place_in_the_order() -> None:
    busy = scope(3).with_session(SCOPE, fold(sealed(dialogue(2))))
    assert busy.ordered_sessions == scope(3).ordered_sessions
    assert busy.sessions[SCOPE].messages == 4


def one() -> Scope:
    return EMPTY_SCOPE.with_session(SCOPE, fold(sealed([header()])), is_active=True)


def test_an_unknown_scope_is_empty() -> None:
    assert SessionIndex()["x"] == EMPTY_SCOPE


def test_scopes_are_decoded_on_first_use() -> None:
    scopes = SessionIndex({"a": index.encode_scope(one())}, 1)
    assert scopes["a"] == one()
    assert list(scopes) == ["a"]
    assert not scopes.is_changed


def test_changed_scopes_are_kept_and_counted() -> None:
    scopes = SessionIndex({"a": index.encode_scope(one())}, 1)
    scopes["b"] = one()
    scopes["a"] = one().without(SCOPE)
    assert (set(scopes), len(scopes), scopes.session_count) == ({"a", "b"}, 2, 1)
    snapshot = scopes.snapshot()
    assert set(snapshot.changed) == {"a", "b"}
    scopes["b"] = EMPTY_SCOPE
    scopes.settle(snapshot, {name: index.encode_scope(scope) for name, scope in snapshot.changed.items()})
    assert set(scopes.snapshot().changed) == {"b"}
    assert (scopes["a"], scopes["b"]) == (one().without(SCOPE), EMPTY_SCOPE)


def test_a_scope_dropped_during_a_flush_stays_dropped() -> None:
    scopes = SessionIndex()
    scopes["a"] = EMPTY_SCOPE
    snapshot = scopes.snapshot()
    scopes.drop_scope("a")
    scopes.settle(snapshot, {"a": index.encode_scope(EMPTY_SCOPE)})
    assert list(scopes) == []
    scopes.settle(scopes.snapshot(), {})
    assert not scopes.is_changed

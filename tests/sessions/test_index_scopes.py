from gateway.sessions import index
from gateway.sessions.index import EMPTY_SCOPE, Scope, SessionIndex
from gateway.sessions.session import fold
from tests.sessions.samples import SCOPE, header, sealed


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

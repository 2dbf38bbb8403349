from gateway.sessions import index
from gateway.sessions.index import EMPTY_SCOPE, Scope, Scopes
from gateway.sessions.session import fold
from tests.sessions.samples import SCOPE, header, sealed


def one() -> Scope:
    return EMPTY_SCOPE.with_session(SCOPE, fold(sealed([header()]))).pointing_to(SCOPE)


def test_a_scope_that_never_was_is_empty() -> None:
    assert Scopes({}, 0)["x"] == EMPTY_SCOPE


def test_scopes_are_decoded_when_they_are_asked_for() -> None:
    scopes = Scopes({"a": index.encode_scope(one())}, 1)
    assert scopes["a"] == one()
    assert list(scopes) == ["a"]
    assert not scopes.is_changed


def test_what_changes_is_kept_and_counted() -> None:
    scopes = Scopes({"a": index.encode_scope(one())}, 1)
    scopes["b"] = one()
    scopes["a"] = one().without(SCOPE)
    assert (set(scopes), len(scopes), scopes.sessions) == ({"a", "b"}, 2, 1)
    changed = scopes.changed()
    assert set(changed) == {"a", "b"}
    scopes["b"] = EMPTY_SCOPE
    scopes.settle({name: index.encode_scope(scope) for name, scope in changed.items()}, changed, frozenset())
    assert set(scopes.changed()) == {"b"}
    assert (scopes["a"], scopes["b"]) == (one().without(SCOPE), EMPTY_SCOPE)


def test_a_dropped_scope_does_not_come_back_with_the_flush_that_was_under_way() -> None:
    scopes = Scopes({}, 0)
    scopes["a"] = EMPTY_SCOPE
    changed = scopes.changed()
    scopes.drop("a")
    scopes.settle({"a": index.encode_scope(EMPTY_SCOPE)}, changed, frozenset())
    assert list(scopes) == []
    scopes.settle({}, {}, scopes.dropped())
    assert not scopes.is_changed

from gateway.sessions import entries as e
from gateway.sessions.cache import HotSessions

LONG: list[e.Entry] = [e.Clear()] * 100


def test_the_least_recently_used_go_first() -> None:
    hot = HotSessions(max_sessions=2)
    hot.put("a", LONG, 1)
    hot.put("b", LONG, 1)
    hot.get("a")
    hot.put("c", LONG, 1)
    assert hot.get("b") is None
    assert hot.get("a") == LONG


def test_of_short_sessions_more_are_kept() -> None:
    hot = HotSessions(max_sessions=2)
    for number in range(9):
        hot.put(f"{number}", [e.Clear()], 1)
    assert [number for number in range(9) if hot.get(f"{number}")] == list(range(1, 9))
    hot.extend("8", LONG, 1)
    assert len(hot) == 2
    for key in ("7", "8"):
        hot.drop(key)
    hot.put("a", [e.Clear()], 1)
    hot.put("b", [e.Clear()], 1)
    hot.put("c", [e.Clear()], 1)
    assert len(hot) == 3


def test_the_bytes_are_bounded_too() -> None:
    hot = HotSessions(max_bytes=100)
    hot.put("a", [], 60)
    hot.put("b", [], 30)
    hot.extend("b", [e.Clear()], 20)
    assert hot.get("a") is None
    assert hot.get("b") == [e.Clear()]


def test_a_session_larger_than_the_bounds_is_not_kept() -> None:
    hot = HotSessions(max_bytes=100)
    hot.put("a", [], 101)
    assert len(hot) == 0


def test_what_is_not_held_is_not_begun_in_the_middle() -> None:
    hot = HotSessions()
    hot.extend("a", [e.Clear()], 20)
    assert hot.get("a") is None


def test_putting_a_session_again_does_not_count_it_twice() -> None:
    hot = HotSessions(max_bytes=100)
    for _ in range(5):
        hot.put("a", [], 60)
    assert hot.get("a") == []

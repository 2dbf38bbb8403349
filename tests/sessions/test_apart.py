"""Sessions apart, which belong to schedules: they are never active by themselves, and have a limit of their own."""

from pathlib import Path

from gateway.sessions import SessionManager, SessionMeta
from gateway.sessions import entries as e
from gateway.sessions.keys import session_key
from gateway.sessions.retention import MAX_APART
from gateway.sessions.session import NewSession
from tests.sessions.conftest import ANN, SCOPE, OpenManager


async def start_apart(manager: SessionManager, number: int, *busy: int) -> SessionMeta:
    busy_keys = {session_key(SCOPE, each) for each in busy}
    meta = await manager.start_new(
        SCOPE,
        agent="main",
        origin=ANN,
        title=f"Schedule {number}",
        new=NewSession(is_apart=True),
        is_busy=busy_keys.__contains__,
    )
    await manager.append(meta.key, [e.User(content="news?", turn=f"t{number}", schedule=f"schedule {number}")])
    return meta


def numbers(manager: SessionManager) -> list[int]:
    return sorted(meta.number for meta in manager.list(SCOPE))


def active(manager: SessionManager) -> int | None:
    meta = manager.active(SCOPE)
    return meta.number if meta else None


async def test_the_session_of_the_chat_stays_active_after_a_restart(
    manager: SessionManager, open_manager: OpenManager
) -> None:
    await manager.start_new(SCOPE, agent="main", origin=ANN)
    await start_apart(manager, 2)
    assert active(manager) == 1
    again = await open_manager()
    assert (active(again), numbers(again)) == (1, [1, 2])
    assert (await again.resolve_active(SCOPE, agent="main", origin=ANN)).number == 1
    await start_apart(again, 3)
    assert active(again) == 1


async def test_a_chat_that_has_only_sessions_apart_starts_one_of_its_own(
    manager: SessionManager, open_manager: OpenManager
) -> None:
    await start_apart(manager, 1)
    assert active(manager) is None
    again = await open_manager()
    assert active(again) is None
    assert (await again.resolve_active(SCOPE, agent="main", origin=ANN)).number == 2


async def test_a_rebuilt_index_knows_which_sessions_are_apart(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await manager.start_new(SCOPE, agent="main", origin=ANN)
    await start_apart(manager, 2)
    await manager.flush()
    (directory / "index.json").unlink()
    again = await open_manager()
    assert (active(again), numbers(again)) == (1, [1, 2])
    await again.flush()
    await again.delete(f"{SCOPE}")
    (directory / "index.json").unlink()
    assert active(await open_manager()) is None


async def test_a_session_apart_that_a_person_resumed_stays_active_after_the_index_was_rebuilt(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await manager.start_new(SCOPE, agent="main", origin=ANN)
    await start_apart(manager, 2)
    await manager.resume(SCOPE, 2)
    await manager.flush()
    (directory / "index.json").unlink()
    assert active(await open_manager()) == 2


async def test_beyond_their_limit_the_one_that_was_not_used_for_longest_is_archived(
    manager: SessionManager, open_manager: OpenManager
) -> None:
    await manager.start_new(SCOPE, agent="main", origin=ANN)
    await manager.append(SCOPE, [e.User(content="hello", turn="t")])
    for number in range(2, MAX_APART + 2):
        await start_apart(manager, number)
    assert numbers(manager) == list(range(1, MAX_APART + 2))
    await manager.append(session_key(SCOPE, 2), [e.User(content="again", turn="t2")])  # It is used again.
    again = await open_manager()
    await start_apart(again, MAX_APART + 2, 3)  # The third is busy, so the fourth goes.
    assert numbers(again) == [1, 2, 3, *range(5, MAX_APART + 3)]
    assert active(again) == 1
    assert [each.key for each in await again.archive.list(SCOPE)] == [session_key(SCOPE, 4)]


async def test_sessions_apart_do_not_displace_those_of_the_chat(manager: SessionManager) -> None:
    for number in range(1, 4):
        await start_apart(manager, number)
    for _ in range(manager.settings.backlog_limit + 2):
        meta = await manager.start_new(SCOPE, agent="main", origin=ANN)
        await manager.append(meta.key, [e.User(content="hello", turn=f"t{meta.number}")])
    assert 4 not in numbers(manager)
    assert numbers(manager)[:3] == [1, 2, 3]

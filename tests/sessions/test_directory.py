"""The directory finds and lists the same sessions as a look at each one."""

from gateway.contract import Address, PeerKind
from gateway.sessions import SessionFilter, SessionManager, SessionMeta, SessionStatus
from gateway.sessions.session import NewSession


async def start(
    manager: SessionManager, name: str, *, channel: str = "api", repo: str = "", by: str = "", title: str | None = None
) -> SessionMeta:
    return await manager.start_new(
        f"agent:main:{channel}:direct:{name}",
        agent="main",
        origin=Address(channel=channel, kind=PeerKind.DIRECT, peer=name),
        title=title,
        new=NewSession(repo=repo, created_by=by),
    )


async def keys(manager: SessionManager, wanted: SessionFilter, limit: int = 100, offset: int = 0) -> list[str]:
    page = await manager.directory.list(wanted, limit=limit, offset=offset)
    return [meta.key for meta in page.sessions]


async def test_a_session_is_found_by_its_id(manager: SessionManager) -> None:
    before = await start(manager, "ann")
    assert await manager.directory.find(before.id) == before
    after = await start(manager, "bob")
    assert await manager.directory.find(after.id) == after
    await manager.delete(before.key)
    assert await manager.directory.find(before.id) is None
    assert await manager.directory.find("") is None
    assert await manager.directory.find(after.id.upper()) is None


async def test_sessions_are_listed_newest_first_and_by_filters(manager: SessionManager) -> None:
    one = await start(manager, "one", repo="shop", by="t1", title="Fix the Café")
    two = await start(manager, "two", repo="shop", by="t2", title="Fix the till")
    three = await start(manager, "three", channel="web", title="The CAFÉ is closed")
    assert await keys(manager, SessionFilter()) == [three.key, two.key, one.key]
    assert await keys(manager, SessionFilter(repos=frozenset({"shop"}))) == [two.key, one.key]
    assert await keys(manager, SessionFilter(channels=frozenset({"web"}))) == [three.key]
    assert await keys(manager, SessionFilter(only_programs=True)) == [two.key, one.key]
    assert await keys(manager, SessionFilter(created_by="t1")) == [one.key]
    assert await keys(manager, SessionFilter(words=("café", "the"))) == [three.key, one.key]
    await manager.set_status(two.key, SessionStatus.COMPLETED)
    assert await keys(manager, SessionFilter(statuses=frozenset({SessionStatus.ACTIVE}))) == [three.key, one.key]
    assert await manager.directory.count("api", SessionStatus.ACTIVE) == 1
    assert [meta.key for meta in await manager.directory.active("api")] == [one.key]

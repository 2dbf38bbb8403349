"""The directory finds and lists the same sessions as a look at each one."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from config import SessionSettings
from config.types import PROGRAM_CHANNELS
from gateway.contract import Address, PeerKind
from gateway.errors import Refused
from gateway.sessions import SessionFilter, SessionManager, SessionMeta, SessionStatus
from gateway.sessions import entries as e
from gateway.sessions.directory import SessionDirectory
from gateway.sessions.index import read_clean
from gateway.sessions.keys import derived_id, file_name, parse_key, session_key
from gateway.sessions.session import NewSession
from gateway.sessions.sorted_rows import MAX_BLOCK
from gateway.sessions.storage.files import FileStorage
from gateway.sessions.transfer import readdress, split_lines
from tests.sessions.conftest import ANN, Clock, OpenManager

T = TypeVar("T")

REPOS = ("", "shop", "till")
CHANNELS = ("api", "web")
TOKENS = ("", "t1", "t2")
TITLES = ("Fix the Café", "the CAFÉ is closed", "Straße", "")


async def start(
    manager: SessionManager,
    name: str,
    *,
    channel: str = "api",
    agent: str = "main",
    repo: str = "",
    by: str = "",
    title: str | None = None,
) -> SessionMeta:
    return await manager.start_new(
        f"agent:{agent}:{channel}:direct:{name}",
        agent=agent,
        origin=Address(channel=channel, kind=PeerKind.DIRECT, peer=name),
        title=title,
        new=NewSession(repo=repo, created_by=by),
    )


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[SessionManager]:
    manager = await SessionManager.open(directory, SessionSettings(), Clock())
    try:
        await manager.recover()
        yield manager
    finally:
        await manager.close()


async def keys(manager: SessionManager, wanted: SessionFilter, limit: int = 100, offset: int = 0) -> list[str]:
    page = await manager.directory.list(wanted, limit=limit, offset=offset)
    return [meta.key for meta in page.sessions]


def slow_directory(manager: SessionManager) -> SessionDirectory:
    """Give the manager a directory that is not built yet, and that lets other tasks run after each scope."""
    manager.directory = SessionDirectory(manager._store, manager._reader, step=0.0)  # noqa: SLF001 - as it does itself.
    return manager.directory


def all_sessions(manager: SessionManager) -> list[SessionMeta]:
    found = [meta for scope in manager.scopes() for meta in manager.list(scope)]
    return sorted(sorted(found, key=lambda meta: meta.key), key=lambda meta: meta.created_at, reverse=True)


def is_wanted(wanted: SessionFilter, meta: SessionMeta) -> bool:
    return (
        (not wanted.statuses or meta.status in wanted.statuses)
        and (not wanted.repos or meta.repo in wanted.repos)
        and (not wanted.channels or meta.channel in wanted.channels)
        and (not wanted.agents or meta.agent in wanted.agents)
        and wanted.created_by in (None, meta.created_by)
        and all(word.casefold() in meta.title.casefold() for word in wanted.words)
        and (not wanted.only_programs or meta.channel in PROGRAM_CHANNELS)
    )


async def test_a_session_is_found_by_its_id(manager: SessionManager) -> None:
    before = await start(manager, "ann")
    assert await manager.directory.find(before.id) == before
    after = await start(manager, "bob")
    assert await manager.directory.find(after.id) == after
    await manager.delete(before.key)
    assert await manager.directory.find(before.id) is None
    for other in ("", after.id.upper(), after.id.replace("-", ""), f"{after.id} ", "\ud800"):
        assert await manager.directory.find(other) is None


async def test_the_directory_is_built_for_its_first_query(manager: SessionManager) -> None:
    await start(manager, "one")
    assert not manager.directory.is_built
    assert await manager.directory.count("api", SessionStatus.ACTIVE) == 1
    assert manager.directory.is_built


async def test_a_session_with_an_odd_id_is_found(manager: SessionManager) -> None:
    """A client may choose the id, and an import brings any."""
    for odd in ("x", "5f0c", "ünlikely", "0" * 32):
        scope = f"agent:main:api:direct:{odd}"
        meta = await manager.start_new(scope, agent="main", origin=ANN, new=NewSession(id=odd))
        assert await manager.directory.find(odd) == meta


async def test_sessions_are_listed_newest_first_and_by_filters(manager: SessionManager) -> None:
    one = await start(manager, "one", repo="shop", by="t1", title="Fix the Café")
    two = await start(manager, "two", repo="shop", by="t2", title="Fix the till")
    three = await start(manager, "three", channel="web", title="The CAFÉ is closed")
    assert await keys(manager, SessionFilter()) == [three.key, two.key, one.key]
    assert await keys(manager, SessionFilter(repos=frozenset({"shop"}))) == [two.key, one.key]
    assert await keys(manager, SessionFilter(channels=frozenset({"web"}))) == [three.key]
    assert await keys(manager, SessionFilter(only_programs=True)) == [two.key, one.key]
    assert await keys(manager, SessionFilter(only_programs=True, channels=frozenset({"web"}))) == []
    assert await keys(manager, SessionFilter(created_by="t1")) == [one.key]
    assert await keys(manager, SessionFilter(words=("café", "the"))) == [three.key, one.key]
    await manager.set_status(two.key, SessionStatus.COMPLETED)
    assert await keys(manager, SessionFilter(statuses=frozenset({SessionStatus.ACTIVE}))) == [three.key, one.key]
    assert await manager.directory.count("api", SessionStatus.ACTIVE) == 1
    assert [meta.key for meta in await manager.directory.active("api")] == [one.key]


async def test_an_agent_is_the_one_that_answers_now(manager: SessionManager) -> None:
    meta = await start(manager, "one")
    assert await keys(manager, SessionFilter(agents=frozenset({"main"}))) == [meta.key]
    await manager.set_agent(meta.key, "coder")
    assert await keys(manager, SessionFilter(agents=frozenset({"main"}))) == []
    assert await keys(manager, SessionFilter(agents=frozenset({"coder"}))) == [meta.key]


async def test_pages_make_up_the_whole_list(directory: Path) -> None:
    """Many sessions in one bucket and few in others, and many of the same time."""
    clock = Clock()
    is_stopped = False

    def now() -> Any:  # noqa: ANN401 - a datetime.
        return clock.now if is_stopped else clock()

    manager = await SessionManager.open(directory, SessionSettings(), now)
    await manager.recover()
    try:
        for number in range(120):
            is_stopped = 40 <= number < 80
            repo = "shop" if number % 7 else "till"
            await start(manager, str(number), repo=repo, channel="web" if number % 11 else "api")
        listed = [meta.key for meta in all_sessions(manager)]
        for size in (1, 7, 50, 500):
            pages = [await keys(manager, SessionFilter(), size, offset) for offset in range(0, 130, size)]
            assert [key for page in pages for key in page] == listed
        shop = SessionFilter(repos=frozenset({"shop"}))
        assert (await manager.directory.list(shop, limit=0)).total == sum(
            is_wanted(shop, meta) for meta in all_sessions(manager)
        )
    finally:
        await manager.close()


async def test_a_bucket_of_many_sessions_stays_in_order(manager: SessionManager) -> None:
    """More sessions than fit into one block of a bucket, which are added and removed in another order."""
    index = manager._store.index  # noqa: SLF001 - starting so many sessions would take long.
    meta = await start(manager, "first")
    state = index.require(meta.key)
    added = [f"agent:main:api:direct:{number * 7919 % 5000}" for number in range(3 * MAX_BLOCK)]
    for number, key in enumerate(added):
        if number == MAX_BLOCK:
            assert len(await keys(manager, SessionFilter(), 5000)) == MAX_BLOCK + 1
        index.update(key, state)
    assert await keys(manager, SessionFilter(), 5000) == sorted([*added, meta.key])
    for key in added[::2]:
        index.remove(key)
    assert await keys(manager, SessionFilter(), 5000) == sorted([*added[1::2], meta.key])
    for key in [*added[1::2], meta.key]:
        index.remove(key)
    assert await keys(manager, SessionFilter(), 5000) == []
    assert not manager.directory._by_id  # noqa: SLF001 - it must not grow.


async def test_changes_during_the_build_are_not_missed(manager: SessionManager) -> None:
    metas = [await start(manager, str(number)) for number in range(60)]
    index = manager._store.index  # noqa: SLF001 - these changes have to come between two steps of the build.
    states = [index.require(meta.key) for meta in metas]
    directory = slow_directory(manager)
    build = asyncio.create_task(directory.count("api", SessionStatus.ACTIVE))
    for number in range(0, 60, 3):
        await asyncio.sleep(0)
        assert not build.done()
        index.update(metas[number].key, replace(states[number], status=SessionStatus.COMPLETED))
        index.remove(metas[number + 1].key)
        index.update(f"agent:main:api:direct:new-{number}", replace(states[number], id=f"new-{number}"))
        if number % 2:
            index.drop_scope(metas[number + 1].scope)
    await build
    expected = all_sessions(manager)
    assert len(expected) == 60
    assert await keys(manager, SessionFilter()) == [meta.key for meta in expected]
    assert await directory.count("api", SessionStatus.ACTIVE) == 40
    for meta in expected:
        assert await directory.find(meta.id) == meta


async def test_changes_while_sessions_are_grouped_are_not_missed(manager: SessionManager) -> None:
    """The first list with these filters, when the directory has been built for others."""
    metas = [await start(manager, str(number), repo=f"repo {number}") for number in range(60)]
    index = manager._store.index  # noqa: SLF001 - these changes have to come between two steps.
    states = [index.require(meta.key) for meta in metas]
    directory = slow_directory(manager)
    await directory.find(metas[0].id)
    grouping = asyncio.create_task(directory.count("api", SessionStatus.ACTIVE))
    for number in range(0, 60, 3):
        await asyncio.sleep(0)
        assert not grouping.done()
        index.update(metas[number].key, replace(states[number], status=SessionStatus.COMPLETED))
        index.remove(metas[number + 1].key)
        index.update(f"agent:main:api:direct:new-{number}", replace(states[number], repo="new"))
    await grouping
    assert await directory.count("api", SessionStatus.ACTIVE) == 40
    assert await directory.count("api", SessionStatus.COMPLETED) == 20
    assert await keys(manager, SessionFilter()) == [meta.key for meta in all_sessions(manager)]


async def test_callers_share_a_build_even_if_the_first_gives_up(manager: SessionManager) -> None:
    for number in range(40):
        await start(manager, str(number))
    directory = slow_directory(manager)
    first, *others = [asyncio.create_task(directory.count("api", SessionStatus.ACTIVE)) for _ in range(5)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert not first.done()
    first.cancel()
    assert await asyncio.gather(*others) == [40] * 4
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_directory_that_was_used_before_recovery_sees_all_sessions(directory: Path) -> None:
    clock = Clock()
    before = await SessionManager.open(directory, SessionSettings(), clock)
    await before.recover()
    meta = await start(before, "ann")
    await before.close()
    manager = await SessionManager.open(directory, SessionSettings(), clock)
    try:
        assert await manager.directory.find(meta.id) is None
        await manager.recover()
        assert await manager.directory.find(meta.id) == meta
    finally:
        await manager.close()


def drop_ids(directory: Path) -> None:
    """Make the index and the checkpoints what a version without ids has written."""

    def without_id(state: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in state.items() if name not in ("id", "channel")}

    path = directory / "index.json"
    index = json.loads(path.read_bytes())
    for scope in index["scopes"].values():
        scope["sessions"] = {key: without_id(state) for key, state in scope["sessions"].items()}
    path.write_text(json.dumps(index))
    for transcript in (directory / "transcripts").iterdir():
        lines = [json.loads(line) for line in transcript.read_bytes().splitlines()]
        for line in lines:
            if line["type"] == "checkpoint":
                line["state"] = without_id(line["state"])
        transcript.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def stored_ids(directory: Path) -> set[str]:
    index = json.loads((directory / "index.json").read_bytes())
    return {state.get("id", "") for scope in index["scopes"].values() for state in scope["sessions"].values()}


async def test_sessions_of_an_older_version_get_their_ids_once(directory: Path) -> None:
    async with opened(directory) as manager:
        metas = [await start(manager, str(number), channel="web") for number in range(5)]
        # Enough for a checkpoint, which is where a start reads the state from if the sizes differ.
        await manager.append(metas[0].key, [e.User(content="hello", turn=str(number)) for number in range(300)])
    drop_ids(directory)
    async with opened(directory) as manager:
        assert {meta.id for meta in all_sessions(manager)} == {"", metas[0].id}
        for meta in metas:
            found = await manager.directory.find(meta.id)
            assert found is not None
            assert (found.key, found.channel) == (meta.key, "web")
    assert stored_ids(directory) == {meta.id for meta in metas}
    async with opened(directory) as manager:
        assert {meta.id for meta in all_sessions(manager)} == {meta.id for meta in metas}


async def test_a_start_after_ids_were_added_trusts_the_index(directory: Path) -> None:
    async with opened(directory) as manager:
        await start(manager, "ann")
    drop_ids(directory)
    # This start finds another index than the one that was marked clean.
    async with opened(directory):
        pass
    async with opened(directory) as manager:
        await manager.directory.list(SessionFilter(), limit=1)
    clean = read_clean(directory / "index.json", directory / "transcripts")
    assert clean is not None
    assert stored_ids(directory) != {""}


async def test_a_session_whose_header_is_lost_gets_a_stable_id(directory: Path) -> None:
    async with opened(directory) as manager:
        lost, kept = await start(manager, "lost", channel="web"), await start(manager, "kept")
    drop_ids(directory)
    path = directory / "transcripts" / file_name(lost.key)
    path.write_bytes(b"?" + path.read_bytes()[1:])
    for _ in range(2):
        async with opened(directory) as manager:
            found = await manager.directory.find(derived_id(lost.key))
            assert found is not None
            assert (found.key, found.channel) == (lost.key, "web")
            assert await manager.directory.find(kept.id) is not None
            await manager.append(lost.key, [e.User(content="still here")])


async def test_a_session_keeps_its_id_if_its_header_is_written_again(directory: Path) -> None:
    async with opened(directory) as manager:
        meta = await start(manager, "ann")
    # As a replay of the journal does it if the file is gone.
    path = directory / "transcripts" / file_name(meta.key)
    path.write_bytes(path.read_bytes().replace(meta.id.encode(), b"another"))
    (directory / "index.clean").unlink()
    async with opened(directory) as manager:
        assert await manager.directory.find(meta.id) is not None


async def import_copy(manager: SessionManager, key: str, copy: str) -> None:
    """Copy a session under another key, as a move to another scope does it. The copy has the same id."""
    lines = [line async for line in split_lines(manager.export_lines(key))]

    async def readdressed() -> AsyncIterator[bytes]:
        for line in lines:
            yield readdress(line, copy)

    await manager.import_lines(parse_key(copy)[0], readdressed())


async def test_a_moved_session_is_found(manager: SessionManager) -> None:
    meta = await start(manager, "ann")
    assert await manager.directory.find(meta.id) == meta
    copy = "agent:main:api:direct:bob"
    await import_copy(manager, meta.key, copy)
    await manager.delete(meta.key)
    found = await manager.directory.find(meta.id)
    assert found is not None
    assert found.key == copy


async def archive_one(manager: SessionManager, name: str) -> SessionMeta:
    """Start two sessions in a scope, archive the first, and return it."""
    old = await start(manager, name)
    for meta in (old, await start(manager, name)):
        await manager.append(meta.key, [e.User(content="hello")])
    assert await manager.prune(old.scope, 1) == [old.key]
    return old


async def test_an_archived_session_is_found_by_its_id(open_manager: OpenManager) -> None:
    manager = await open_manager()
    assert await manager.directory.find_archived("nothing") is None
    meta = await archive_one(manager, "ann")
    for each in (manager, await open_manager()):
        assert await each.directory.find(meta.id) is None
        archived = await each.directory.find_archived(meta.id)
        assert archived is not None
        assert archived.meta.id == meta.id
        assert [entry.seq async for entry in each.entries(archived.key)] == [1, 2, 3]
        assert [entry.seq async for entry in each.entries_since(archived.key, 2)] == [3]
        assert await each.directory.find_archived(meta.id.upper()) is None


async def test_a_restored_session_is_not_archived_any_more(manager: SessionManager) -> None:
    meta = await archive_one(manager, "ann")
    archived = await manager.directory.find_archived(meta.id)
    assert archived is not None
    await manager.archive.restore(archived, [])
    assert await manager.directory.find_archived(meta.id) is None
    assert await manager.directory.find(meta.id) is not None
    await manager.delete(meta.key)
    assert await manager.directory.find_archived(meta.id) is None


async def test_the_copy_of_an_archived_session_is_found_after_a_move(open_manager: OpenManager) -> None:
    """A move writes a copy with the same id first, and deletes the original at its end."""
    manager = await open_manager()
    original = await archive_one(manager, "ann")
    target = await start(manager, "bob")
    await manager.append(target.key, [e.User(content="hello")])
    copy = session_key(target.scope, 2)
    await import_copy(manager, original.key, copy)
    assert await manager.prune(target.scope, 1) == [copy]
    other = await open_manager()
    found = await other.directory.find_archived(original.id)
    assert found is not None
    await other.delete(found.key)
    left = await other.directory.find_archived(original.id)
    assert left is not None
    assert {found.key, left.key} == {original.key, copy}


async def test_a_session_that_an_older_version_archived_is_found(open_manager: OpenManager) -> None:
    manager = await open_manager()
    old = await start(manager, "ann")
    for meta in (old, await start(manager, "ann")):
        await manager.append(meta.key, [e.User(content="hello")])
    index = manager._store.index  # noqa: SLF001 - as an older version has left it.
    index.update(old.key, replace(index.require(old.key), id=""))
    await manager.prune(old.scope, 1)
    for each in (manager, await open_manager()):
        archived = await each.directory.find_archived(old.id)
        assert archived is not None
        assert archived.meta.id == old.id


class Machine(RuleBasedStateMachine):
    """Random operations before, during and after the build of the directory."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.manager = self.run(self._opened())
        self.build: asyncio.Task[object] | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    async def _opened(self) -> SessionManager:
        disk = FileStorage(Path(self.folder.name) / "sessions")
        disk.prepare()
        manager = SessionManager(disk, SessionSettings(backlog_limit=3), self._now)
        await manager.recover()
        slow_directory(manager)
        return manager

    def _now(self) -> Any:  # noqa: ANN401 - a datetime.
        # Every other session has the same time as another one.
        return self.clock.now if self.clock.now.second % 2 else self.clock()

    async def _close(self) -> None:
        if self.build is not None:
            await self.build
            self.build = None
        await self.manager.close()

    def teardown(self) -> None:
        self.run(self._close())
        self.runner.close()
        self.folder.cleanup()

    @rule(steps=st.integers(min_value=0, max_value=6))
    def begin_build(self, steps: int) -> None:
        """Build a new directory while the next operations run."""

        async def begin() -> None:
            if self.build is not None:
                await self.build
            listing = slow_directory(self.manager).list(SessionFilter(), limit=10)
            self.build = asyncio.create_task(listing)
            for _ in range(steps):
                await asyncio.sleep(0)

        self.run(begin())

    def _any(self, number: int) -> SessionMeta | None:
        found = all_sessions(self.manager)
        return found[number % len(found)] if found else None

    @rule(
        name=st.sampled_from("abc"),
        channel=st.sampled_from(CHANNELS),
        repo=st.sampled_from(REPOS),
        by=st.sampled_from(TOKENS),
        title=st.sampled_from(TITLES),
        said=st.booleans(),
        tick=st.booleans(),
    )
    def start(self, name: str, channel: str, repo: str, by: str, title: str, *, said: bool, tick: bool) -> None:
        if tick:
            self.clock()
        meta = self.run(start(self.manager, name, channel=channel, repo=repo, by=by, title=title))
        if said:
            self.run(self.manager.append(meta.key, [e.User(content=f"hello {repo}")]))

    @rule(number=st.integers(0, 100), what=st.sampled_from(["append", "complete", "fail", "title", "agent", "resume"]))
    def change(self, number: int, what: str) -> None:
        meta = self._any(number)
        if meta is None:
            return
        match what:
            case "append":
                self.run(self.manager.append(meta.key, [e.User(content="more")]))
            case "complete":
                self.run(self.manager.set_status(meta.key, SessionStatus.COMPLETED))
            case "fail":
                self.run(self.manager.set_status(meta.key, SessionStatus.ERROR))
            case "title":
                self.run(self.manager.set_title(meta.key, TITLES[number % len(TITLES)]))
            case "agent":
                self.run(self.manager.set_agent(meta.key, "coder"))
            case _:
                self.run(self.manager.resume(meta.scope, meta.number))

    @rule(number=st.integers(0, 100))
    def delete(self, number: int) -> None:
        if (meta := self._any(number)) is not None:
            self.run(self.manager.delete(meta.key))

    @rule(number=st.integers(0, 100))
    def archive(self, number: int) -> None:
        if (meta := self._any(number)) is not None:
            self.run(self.manager.prune(meta.scope, 1))

    @rule(number=st.integers(0, 100))
    def restore(self, number: int) -> None:
        scopes = sorted(self.manager.archive.scopes())
        if not scopes:
            return
        archived = self.run(self.manager.archive.list(scopes[number % len(scopes)]))
        session = archived[number % len(archived)]
        copies = self.run(self.manager.copy_displaced(session))
        self.run(self.manager.archive.restore(session, copies))

    @rule(number=st.integers(0, 100), is_deleted=st.booleans())
    def copy(self, number: int, *, is_deleted: bool) -> None:
        """Import a copy into another scope. It has the same id, until a move deletes the session that was copied."""
        meta = self._any(number)
        if meta is None:
            return
        scope = "agent:main:web:direct:moved"
        key = session_key(scope, self.manager.next_number(scope))

        self.run(import_copy(self.manager, meta.key, key))
        if is_deleted:
            self.run(self.manager.delete(meta.key))

    @rule(number=st.integers(0, 100))
    def import_again(self, number: int) -> None:
        """Delete a session and import it."""
        meta = self._any(number)
        if meta is None:
            return

        async def delete_and_import() -> None:
            lines = [line async for line in self.manager.export_lines(meta.key)]
            await self.manager.delete(meta.key)

            async def exported() -> Any:  # noqa: ANN401 - an async generator.
                for line in lines:
                    yield line

            try:
                await self.manager.import_lines(meta.scope, exported())
            except Refused:
                await self.manager.flush()

        self.run(delete_and_import())

    @rule()
    def flush(self) -> None:
        self.run(self.manager.flush())

    @rule()
    def restart(self) -> None:
        self.run(self._close())
        self.manager = self.run(self._opened())

    @rule(
        wanted=st.builds(
            SessionFilter,
            statuses=st.frozensets(st.sampled_from(SessionStatus), max_size=2),
            repos=st.frozensets(st.sampled_from(REPOS), max_size=2),
            channels=st.frozensets(st.sampled_from(CHANNELS), max_size=2),
            agents=st.frozensets(st.sampled_from(["main", "coder"]), max_size=1),
            created_by=st.none() | st.sampled_from(TOKENS),
            words=st.lists(st.sampled_from(["the", "CAFÉ", "strasse", "shop"]), max_size=2).map(tuple),
            only_programs=st.booleans(),
        ),
        limit=st.integers(0, 5),
        offset=st.integers(0, 5),
    )
    def list(self, wanted: SessionFilter, limit: int, offset: int) -> None:
        page = self.run(self.manager.directory.list(wanted, limit=limit, offset=offset))
        expected = [meta for meta in all_sessions(self.manager) if is_wanted(wanted, meta)]
        assert page.sessions == expected[offset : offset + limit]
        assert [meta for meta in all_sessions(self.manager) if wanted.accepts(meta)] == expected
        assert page.total == len(expected)

    @invariant()
    def counts_and_finds(self) -> None:
        if self.build is None or not self.build.done():
            return
        directory, expected = self.manager.directory, all_sessions(self.manager)
        for channel in CHANNELS:
            active = [meta for meta in expected if meta.channel == channel and meta.status is SessionStatus.ACTIVE]
            assert self.run(directory.active(channel)) == active
            assert self.run(directory.count(channel, SessionStatus.ACTIVE)) == len(active)
        for meta in expected:
            found = self.run(directory.find(meta.id))
            assert found in [other for other in expected if other.id == meta.id]

    @rule()
    def find_archived(self) -> None:
        listed = {meta.id for meta in all_sessions(self.manager)}
        for scope in self.manager.archive.scopes():
            for session in self.run(self.manager.archive.list(scope)):
                found = self.run(self.manager.directory.find_archived(session.state.id))
                # A copy of it may have the same id.
                assert found is not None or session.state.id in listed


Machine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestDirectory = Machine.TestCase

"""The same tests for both kinds of archive, and tests of the control socket for the remote one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import WSMsgType

from config import SessionSettings, Settings
from gateway.admin.archive import (
    Archive,
    RemoteArchive,
    open_archive,
    open_local_archive,
)
from gateway.admin.client import ControlClient
from gateway.build import open_daemon
from gateway.data_dir import DataDirLock
from gateway.errors import CannotStart, Refused
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from gateway.sessions.storage.transfer_files import BLOCK
from gateway.sessions.transfer import join_into_blocks, split_lines
from tests.sessions.conftest import ANN, SCOPE, Clock
from tests.sessions.samples import dialogue, encoded, header

OTHER = "agent:main:web:direct:bob%20~"
LONG = "x" * 3_000_000

OpenArchive = Callable[[Settings], AbstractAsyncContextManager[Archive]]


@asynccontextmanager
async def through_daemon(settings: Settings) -> AsyncIterator[Archive]:
    async with open_daemon(settings, listen=False), open_archive(settings) as archive:
        assert isinstance(archive, RemoteArchive)
        yield archive


@pytest.fixture(params=[open_local_archive, through_daemon], ids=["files", "daemon"])
def connect(request: pytest.FixtureRequest) -> OpenArchive:
    way: OpenArchive = request.param
    return way


@pytest.fixture
async def settings(tmp_path: Path) -> Settings:
    """Two scopes with three sessions. One session has a line that is longer than any frame."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    manager = await SessionManager.open(directory / "sessions", SessionSettings(), Clock())
    await manager.recover()
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    await manager.append(SCOPE, [e.User(content="hi \u2028 \x1b[2J"), e.Assistant(content=LONG)])
    await manager.start_new(SCOPE, agent="main", origin=ANN, title="Second")
    await manager.resolve_active(OTHER, agent="main", origin=ANN)
    await manager.close()
    return Settings.model_validate({"gateway": {"data_dir": directory}})


def transcript(settings: Settings, key: str = SCOPE) -> Path:
    return settings.gateway.data_dir / "sessions" / "transcripts" / file_name(key)


async def given(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 1000):
        yield data[start : start + 1000]


async def exported(archive: Archive, key: str) -> bytes:
    return b"".join([block async for block in archive.export(key)])


async def keys(archive: Archive, scope: str | None = None) -> list[str]:
    return [listed.meta.key async for listed in archive.sessions(scope)]


async def test_lists_all_or_one_scope(settings: Settings, connect: OpenArchive) -> None:
    async with connect(settings) as archive:
        assert sorted(await keys(archive)) == [SCOPE, f"{SCOPE}#2", OTHER]
        assert await keys(archive, OTHER) == [OTHER]
        assert await keys(archive, "agent:main:web:direct:bob") == []
        listed = [listed async for listed in archive.sessions(SCOPE)]
    assert [(each.meta.number, each.meta.title, each.is_active) for each in listed] == [
        (2, "Second", True),
        (1, "hi \x1b[2J", False),
    ]
    assert listed[1].meta.size == transcript(settings).stat().st_size


async def test_shows_the_last_lines(settings: Settings, connect: OpenArchive) -> None:
    async with connect(settings) as archive:
        assert [line.text for line in await archive.lines(SCOPE, 2)] == ["hi \u2028 \x1b[2J", LONG]
        assert [line.role for line in await archive.lines(SCOPE, 1)] == ["assistant"]
        assert await archive.lines(f"{SCOPE}#2", 1) == []


async def test_a_session_is_the_same_to_the_byte_after_export_delete_and_import(
    settings: Settings, connect: OpenArchive
) -> None:
    with transcript(settings).open("ab") as file:
        file.write(b'\xff damaged\r \n{"type":"dream","seq":6,"ts":"2026-03-01T00:00:00Z"}\n')
    async with connect(settings) as archive:
        whole = await exported(archive, SCOPE)
        assert whole == transcript(settings).read_bytes()
        await archive.delete(SCOPE)
        assert not transcript(settings).exists()
        assert await keys(archive, SCOPE) == [f"{SCOPE}#2"]
        meta = await archive.import_session(given(whole))
        assert (meta.key, meta.messages) == (SCOPE, 2)
        assert await exported(archive, SCOPE) == whole
    assert transcript(settings).read_bytes() == whole
    assert transcript(settings).stat().st_mode & 0o777 == 0o600


async def test_an_import_is_refused_with_the_reason(settings: Settings, connect: OpenArchive) -> None:
    async with connect(settings) as archive:
        with pytest.raises(Refused, match="not a header"):
            await archive.import_session(given(b"nonsense\n"))
        with pytest.raises(Refused, match="Session 1 already exists"):
            await archive.import_session(given(await exported(archive, SCOPE)))


async def test_an_incomplete_session_is_not_imported(settings: Settings, connect: OpenArchive) -> None:
    key = f"{SCOPE}#7"

    async def breaking_off() -> AsyncIterator[bytes]:
        yield encoded([header(key=key, number=7)])
        raise Refused("the file cannot be read")

    async with connect(settings) as archive:
        with pytest.raises(Refused, match="cannot be read"):
            await archive.import_session(breaking_off())
        assert key not in await keys(archive)
    assert not list(settings.gateway.data_dir.rglob(".arriving*"))
    assert not transcript(settings, key).exists()


@pytest.mark.parametrize("key", ["", "#2", f"{SCOPE}#1", f"{SCOPE}#9", "../../etc/passwd", "agent:\x00", "nobody"])
async def test_an_unknown_session_is_refused(settings: Settings, connect: OpenArchive, key: str) -> None:
    async with connect(settings) as archive:
        with pytest.raises(Refused):
            await archive.lines(key, 1)
        with pytest.raises(Refused):
            await exported(archive, key)
        with pytest.raises(Refused):
            await archive.delete(key)
        assert len(await keys(archive)) == 3


async def test_a_session_whose_file_is_missing_is_refused(settings: Settings, connect: OpenArchive) -> None:
    async with connect(settings) as archive:
        transcript(settings).unlink()
        with pytest.raises(Refused):
            await exported(archive, SCOPE)


async def test_verify_reports_damage(settings: Settings, connect: OpenArchive) -> None:
    async with connect(settings) as archive:
        assert (await archive.verify()).is_sound
        with transcript(settings).open("ab") as file:
            file.write(b"damaged\n")
        report = await archive.verify()
    assert {problem.kind for problem in report.problems} == {"damaged_line", "stale_index"}
    assert not report.is_sound


async def test_verify_can_run_before_repairs(settings: Settings) -> None:
    index = settings.gateway.data_dir / "sessions" / "index.json"
    index.write_bytes(b"{")
    async with open_archive(settings, as_found=True) as archive:
        assert "bad_index" in {problem.kind for problem in (await archive.verify()).problems}
    assert index.read_bytes() == b"{"


async def test_refuses_to_open_files_that_another_process_holds(settings: Settings) -> None:
    with DataDirLock(settings.gateway.data_dir), pytest.raises(CannotStart, match="in use by process"):
        async with open_archive(settings):
            pytest.fail("entered")


async def test_an_interrupted_import_leaves_nothing(settings: Settings) -> None:
    key = f"{SCOPE}#7"
    async with open_daemon(settings, listen=False), ControlClient(settings.gateway.data_dir) as control:
        socket = await control.websocket("/sessions/import")
        await socket.send_bytes(encoded([header(key=key, number=7)]))
        await socket.close()
        assert key not in await keys(RemoteArchive(control))
    assert not list(settings.gateway.data_dir.rglob(".arriving*"))
    assert not transcript(settings, key).exists()


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/sessions/transcript", "`key` is missing"),
        ("/sessions/lines?key=nobody", "`limit` is missing"),
        ("/sessions/lines?key=nobody&limit=0", "from 1 to"),
        ("/sessions/lines?key=nobody&limit=-1", "from 1 to"),
        ("/sessions/lines?key=nobody&limit=99999999999999999999", "from 1 to"),
    ],
)
async def test_an_invalid_query_gets_an_error_message(settings: Settings, path: str, sentence: str) -> None:
    async with open_daemon(settings, listen=False), ControlClient(settings.gateway.data_dir) as control:
        async with await control.websocket(path) as socket:
            message = await socket.receive(timeout=10)
        assert message.type is WSMsgType.TEXT
        assert sentence in message.data


async def test_a_plain_request_to_a_websocket_route_is_refused(settings: Settings) -> None:
    async with open_daemon(settings, listen=False), ControlClient(settings.gateway.data_dir) as control:
        with pytest.raises(Refused):
            await control.get("/sessions/list")
        with pytest.raises(Refused, match="`key` is missing"):
            await control.post("/sessions/delete")


async def test_a_client_may_close_a_stream_early(settings: Settings) -> None:
    async with open_daemon(settings, listen=False), ControlClient(settings.gateway.data_dir) as control:
        for _ in range(3):
            socket = await control.websocket(f"/sessions/transcript?key={SCOPE}")
            assert (await socket.receive(timeout=10)).type is WSMsgType.BINARY
            await socket.close()
        assert len(await keys(RemoteArchive(control))) == 3


async def test_a_daemon_that_stops_during_an_import_is_reported(settings: Settings) -> None:
    async with ControlClient(settings.gateway.data_dir) as control, AsyncExitStack() as daemon, asyncio.timeout(60):
        await daemon.enter_async_context(open_daemon(settings, listen=False))

        async def slowly() -> AsyncIterator[bytes]:
            yield encoded([header(key=f"{SCOPE}#7", number=7)])
            await daemon.aclose()
            yield b"more"

        with pytest.raises(Refused, match="closed the connection too early"):
            await RemoteArchive(control).import_session(slowly())
    assert not transcript(settings, f"{SCOPE}#7").exists()


async def test_splitting_into_lines_and_joining_into_blocks_keeps_every_byte() -> None:
    data = encoded(dialogue(2000)) + LONG.encode() + b"\n\nlast"
    lines = [line async for line in split_lines(given(data))]
    assert lines == data.splitlines(keepends=True)
    blocks = [block async for block in join_into_blocks(split_lines(given(data)))]
    assert b"".join(blocks) == data
    assert {len(block) for block in blocks[:-1]} == {BLOCK}


@pytest.fixture
async def archived(settings: Settings) -> Settings:
    """Archive the first session of a scope."""
    manager = await SessionManager.open(settings.gateway.data_dir / "sessions", SessionSettings(), Clock())
    await manager.recover()
    await manager.append(f"{SCOPE}#2", [e.User(content="hello")])
    await manager.start_new(SCOPE, agent="main", origin=ANN)
    assert await manager.prune(SCOPE, 1) == [SCOPE]
    await manager.close()
    return settings


async def test_archived_sessions_are_listed_exported_and_restored(archived: Settings, connect: OpenArchive) -> None:
    async with connect(archived) as archive:
        assert SCOPE not in await keys(archive)
        for scope in (None, SCOPE):
            listed = [each async for each in archive.sessions(scope, are_archived=True)]
            assert [(each.meta.key, each.is_archived) for each in listed] == [(SCOPE, True)]
        before = await exported(archive, SCOPE)
        assert b"hi " in before
        assert (await archive.restore(SCOPE)).key == SCOPE
        assert SCOPE in await keys(archive)
        assert (await exported(archive, SCOPE)).startswith(before)
        with pytest.raises(Refused, match="not in the archive"):
            await archive.restore(SCOPE)


async def test_an_archived_session_is_deleted(archived: Settings, connect: OpenArchive) -> None:
    async with connect(archived) as archive:
        await archive.delete(SCOPE)
        assert [each async for each in archive.sessions(are_archived=True)] == []
        with pytest.raises(Refused, match="doesn't exist"):
            await archive.delete(SCOPE)


async def test_a_damaged_archived_session_can_be_deleted(archived: Settings, connect: OpenArchive) -> None:
    (file,) = (archived.gateway.data_dir / "sessions/archive").rglob("*.gz")
    file.write_bytes(b"damaged")
    async with connect(archived) as archive:
        assert not (await archive.verify()).is_sound
        await archive.delete(SCOPE)
        assert (await archive.verify()).is_sound

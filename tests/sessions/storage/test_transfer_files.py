import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.errors import Refused, SessionDamaged
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from tests.sessions.conftest import ANN, SCOPE, Clock, OpenManager
from tests.sessions.samples import encoded, header


async def given(data: bytes) -> AsyncIterator[bytes]:
    for line in data.splitlines(keepends=True):
        yield line


async def exported(manager: SessionManager, key: str = SCOPE) -> bytes:
    return b"".join([line async for line in manager.export_lines(key)])


@pytest.fixture
async def elsewhere(tmp_path: Path) -> AsyncIterator[SessionManager]:
    manager = await SessionManager.open(tmp_path / "elsewhere", SessionSettings(), Clock())
    await manager.recover()
    yield manager
    await manager.close()


async def test_export_and_import_preserve_every_byte(
    manager: SessionManager, elsewhere: SessionManager, directory: Path
) -> None:
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    await manager.append(SCOPE, [e.User(content=f"{number} \u2028\r\x85") for number in range(3000)])
    path = directory / "transcripts" / file_name(SCOPE)
    with path.open("ab") as file:
        file.write(b'\xff damaged\r \n{"type":"dream","seq":3003,"ts":"2026-03-01T00:00:00Z"}\n')
    whole = await exported(manager)
    assert whole == path.read_bytes()
    meta = await elsewhere.import_lines(None, given(whole))
    assert await exported(elsewhere) == whole
    assert (meta.key, meta.messages) == (SCOPE, 3000)
    assert elsewhere.active(SCOPE) == meta
    assert (await elsewhere.append(SCOPE, [e.User(content="on")]))[0].seq == 3004
    assert not list((directory.parent / "elsewhere").rglob(".arriving*"))


async def test_exporting_a_session_without_its_file_is_refused(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    other = await open_manager()
    (directory / "transcripts" / file_name(SCOPE)).unlink()
    with pytest.raises(SessionDamaged, match="The transcript of session 1 is missing from the disk"):
        await exported(other)


async def test_a_session_deleted_during_its_export_is_reported_as_deleted(manager: SessionManager) -> None:
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    exporting = asyncio.create_task(exported(manager), name="exporting")
    deleting = asyncio.create_task(manager.delete(SCOPE), name="deleting")
    await deleting
    with suppress(Refused):  # It may have been quicker than that.
        assert b'"session"' in await exporting


async def test_importing_an_existing_session_is_refused(manager: SessionManager) -> None:
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    before = await exported(manager)
    with pytest.raises(Refused, match="Session 1 already exists"):
        await manager.import_lines(SCOPE, given(before))
    assert await exported(manager) == before


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "not a header"),
        (b"nonsense\n", "not a header"),
        (encoded([e.User(content="hi")]), "not a header"),
        (encoded([header(key="#2")]), "not a header"),
        (encoded([header(version=2)]), "Update Gatehouse"),
        (encoded([header(key="agent:main:web:direct:bob")]), "another chat"),
    ],
)
async def test_importing_an_invalid_or_foreign_session_is_refused(
    manager: SessionManager, directory: Path, data: bytes, sentence: str
) -> None:
    with pytest.raises(Refused, match=sentence):
        await manager.import_lines(SCOPE, given(data))
    assert list((directory / "transcripts").iterdir()) == []


async def test_an_import_does_not_replace_the_active_session(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    await manager.import_lines(SCOPE, given(encoded([header(key=f"{SCOPE}#7", number=7)])))
    await manager.flush()
    (directory / "index.json").unlink()
    for found in (manager, await open_manager()):
        assert [meta.number for meta in found.list(SCOPE)] == [7, 1]
        assert found.active(SCOPE) == found.list(SCOPE)[1]
    assert (await found.start_new(SCOPE, agent="main", origin=ANN)).number == 8


async def test_entries_are_yielded_in_order(manager: SessionManager) -> None:
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    await manager.append(SCOPE, [e.User(content="hi")])
    assert [entry.seq async for entry in manager.entries(SCOPE)] == [1, 2, 3]


async def test_exporting_an_unknown_session_is_refused(manager: SessionManager) -> None:
    with pytest.raises(Refused):
        await exported(manager)

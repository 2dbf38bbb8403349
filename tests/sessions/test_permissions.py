"""Files that belong to another user, or are readable by others."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from config import SessionSettings
from gateway.errors import Refused
from gateway.sessions import SessionManager, SessionStatus
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from tests.sessions.conftest import ANN, SCOPE, Clock, OpenManager

NOBODY = 65534

AS_NOBODY = """
import asyncio, concurrent.futures.thread, os, sys
from datetime import UTC, datetime
from pathlib import Path
from config import SessionSettings
from gateway.errors import CannotStart, Refused
from gateway.sessions import SessionManager, entries as e
from gateway.contract import Address, PeerKind

SCOPE = "agent:main:web:direct:ann"
ANN = Address(channel="web", kind=PeerKind.DIRECT, peer="ann")

SETTINGS = SessionSettings()  # All modules have to be imported before their folders are out of reach.

async def main(directory):
    manager = await SessionManager.open(directory, SETTINGS, lambda: datetime.now(UTC))
    await manager.recover()
    assert [meta.number for meta in manager.list(SCOPE)] == [2, 1]
    try:
        await manager.load(SCOPE)
    except Refused as refusal:
        assert "from the disk (Permission denied)" in str(refusal), refusal
    assert [line.text for line in await manager.lines(SCOPE + "#2", 5)] == ["hi"]
    try:
        await manager.append(SCOPE, [e.User(content="refused")])
        raise AssertionError("a session that cannot be read took an entry")
    except Refused as refusal:
        assert "(Permission denied)" in str(refusal), refusal
    (directory / "transcripts").chmod(0o500)
    third = await manager.start_new(SCOPE, agent="main", origin=ANN)
    await manager.flush()
    assert "Permission denied" in manager.trouble
    assert len(await manager.history(third.key)) == 0
    (directory / "transcripts").chmod(0o700)
    await manager.flush()
    assert [meta.number for meta in manager.list(SCOPE)] == [3, 2, 1]
    await manager.close()
    directory.chmod(0o500)
    try:
        await SessionManager.open(directory, SETTINGS, lambda: datetime.now(UTC))
    except CannotStart as refusal:
        print(refusal)

os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.fixture
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Use a folder that other users can reach, if the test needs one."""
    if request.node.get_closest_marker("usefixtures") is None:
        yield tmp_path / "sessions"
        return
    if os.geteuid() != 0:
        pytest.skip("needs root, to act as another user")
    with TemporaryDirectory() as folder:
        os.chown(folder, NOBODY, NOBODY)
        yield Path(folder) / "sessions"


def transcript(directory: Path, key: str = SCOPE) -> Path:
    return directory / "transcripts" / file_name(key)


@pytest.mark.usefixtures("directory")
async def test_a_file_of_another_user_affects_no_other_session(manager: SessionManager, directory: Path) -> None:
    for _ in range(2):
        session = await manager.start_new(SCOPE, agent="main", origin=ANN)
        await manager.append(session.key, [e.User(content="hi")])
    await manager.flush()
    before = transcript(directory).read_bytes()
    for path in (directory, *directory.rglob("*")):  # noqa: ASYNC240 - a test has the loop for itself.
        if path != transcript(directory):
            os.chown(path, NOBODY, NOBODY)
    done = subprocess.run(  # noqa: ASYNC221 - as above.
        [sys.executable, "-c", AS_NOBODY, str(directory)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ": Permission denied. Make it writable" in done.stdout
    assert transcript(directory).read_bytes() == before


async def test_a_file_open_to_others_is_closed_at_start_and_counted(manager: SessionManager, directory: Path) -> None:
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    await manager.flush()
    for path in (transcript(directory), directory / "index.json"):
        path.chmod(0o644)
    again = await SessionManager.open(directory, SessionSettings(), Clock())
    assert (await again.recover()).opened == 1
    for path in (transcript(directory), directory / "index.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await again.close()


async def test_a_file_that_others_can_read_is_closed_when_it_is_used(manager: SessionManager, directory: Path) -> None:
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    transcript(directory).chmod(0o666)
    await manager.flush()
    assert stat.S_IMODE(transcript(directory).stat().st_mode) == 0o600


async def test_a_disk_that_fails_to_read_leaves_the_file_as_it_is(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    """A folder in place of the file fails like a broken disk: on reading, not on opening."""
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    await manager.flush()
    other = await open_manager()
    kept = transcript(directory).rename(directory / "kept")
    transcript(directory).mkdir()
    with pytest.raises(Refused, match="can't read session 1 from the disk"):
        await other.load(SCOPE)
    assert [meta.status for meta in other.list(SCOPE)] == [SessionStatus.ERROR]
    transcript(directory).rmdir()
    kept.rename(transcript(directory))
    assert len((await other.load(SCOPE)).entries) == 2
    assert [meta.status for meta in other.list(SCOPE)] == [SessionStatus.ACTIVE]

"""The first start on a data directory of an older version, in which everyone shared the workspace of an agent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import msgspec
import pytest
from structlog.testing import capture_logs

from config import Settings, WorkspaceMode
from gateway.contract import Address, PeerKind
from gateway.files.migration import MIGRATED, MigrationPlan, migrate_workspaces
from gateway.files.store import FileStore, folder_of
from gateway.files.workspaces import workspace_of
from gateway.sessions import SessionManager, entries
from gateway.spool import SetFact, Spool
from tests.files.harness import chunks

ADA, BOB = "agent:main:web:direct:ada", "agent:main:web:direct:bob"
ORIGIN = Address(channel="web", kind=PeerKind.DIRECT, peer="ada")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def turn_at(moment: datetime, rest: int = 0) -> str:
    """Return the id of a turn as the inbox makes it: 14 digits of the time, and 18 random ones."""
    return f"{int(moment.timestamp() * 1_000_000_000) >> 10:014x}{rest:018x}"


class OldData:
    def __init__(self, settings: Settings, spool: Spool, store: FileStore, sessions: SessionManager) -> None:
        self.settings = settings
        self.spool = spool
        self.store = store
        self.sessions = sessions
        self.root = settings.gateway.workspace_root
        self.shared = self.root / "main"
        self.copies = self.shared / "attachments"

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path, **tables: object) -> AsyncIterator[Self]:
        settings = Settings.model_validate({"gateway": {"data_dir": folder / "data"}, **tables})
        (folder / "data").mkdir(exist_ok=True, mode=0o700)
        store = FileStore(folder / "data/files", 10**9)
        await store.open()
        async with await Spool.open(folder / "data") as spool:
            sessions = await SessionManager.open(folder / "data/sessions", settings.session, lambda: NOW, journal=spool)
            await sessions.recover()
            old = cls(settings, spool, store, sessions)
            old.shared.mkdir(parents=True, exist_ok=True)
            try:
                yield old
            finally:
                await sessions.close()

    async def begin(self, scope: str, *, agent: str = "main") -> str:
        return (await self.sessions.resolve_active(scope, agent=agent, origin=ORIGIN)).key

    async def upload(
        self,
        scope: str,
        content: bytes,
        *,
        copy: bytes | None = None,
        is_stored: bool = True,
        at: datetime = NOW,
        rest: int = 0,
    ) -> str:
        """Receive `cat.jpg` as the older version did. Returns the name of the copy."""
        key = await self.begin(scope)
        turn = turn_at(at, rest)
        kept = await self.store.keep(folder_of(key), f"{turn}-1-cat.jpg", chunks(content), limit=10**6)
        if not is_stored:
            kept.path.unlink()
        note = f"[image: cat.jpg; in the workspace: attachments/{turn[:8]}-1-cat.jpg]"
        file = entries.Attached(name="cat.jpg", kind="image", ref=kept.ref, note=note)
        await self.sessions.append(key, [entries.User(content="look", attachments=(file,), turn=turn)])
        self.copies.mkdir(exist_ok=True)
        name = f"{turn[:8]}-1-cat.jpg"
        (self.copies / name).write_bytes(content if copy is None else copy)
        return name

    async def migrate(self) -> None:
        await migrate_workspaces(self.settings, spool=self.spool, store=self.store, sessions=self.sessions)

    def files_of(self, scope: str) -> dict[str, bytes]:
        folder = self.store.folder(scope)
        return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}

    def private(self, scope: str, agent: str = "main") -> Path:
        return workspace_of(self.root, agent, WorkspaceMode.PRIVATE, scope).path


async def test_a_copy_of_a_stored_file_is_dropped(tmp_path: Path) -> None:
    async with OldData.open(tmp_path) as old:
        await old.upload(ADA, b"hers")
        await old.begin(BOB)
        await old.migrate()
        assert old.files_of(ADA) == {f"{turn_at(NOW)}-1-cat.jpg": b"hers"}
        assert not old.shared.exists()


@pytest.mark.parametrize("is_stored", [True, False], ids=["changed", "the only copy"])
async def test_a_copy_goes_to_the_session_that_received_it(tmp_path: Path, *, is_stored: bool) -> None:
    async with OldData.open(tmp_path) as old:
        name = await old.upload(ADA, b"hers", copy=b"edited", is_stored=is_stored)
        await old.begin(BOB)
        await old.migrate()
        assert old.files_of(ADA)[name] == b"edited"
        assert old.store.folder(ADA).joinpath(name).stat().st_mode & 0o777 == 0o600
        assert old.files_of(BOB) == {}
        assert not old.copies.exists()
        await old.store.remove_session(ADA)
        assert not list((tmp_path / "data").rglob(name))


async def test_a_person_who_wrote_the_name_of_a_file_does_not_get_it(tmp_path: Path) -> None:
    async with OldData.open(tmp_path) as old:
        name = await old.upload(ADA, b"hers", is_stored=False)
        key = await old.begin(BOB)
        claim = f'"attachments": attachments/{name} {folder_of(ADA)}/{turn_at(NOW)}-1-cat.jpg'
        mine = entries.Attached(name="x", kind="file", ref=f"{folder_of(ADA)}/{turn_at(NOW)}-1-cat.jpg")
        await old.sessions.append(key, [entries.User(content=claim, attachments=(mine,))])
        await old.migrate()
        assert old.files_of(ADA) == {name: b"hers"}
        assert old.files_of(BOB) == {}


async def test_a_copy_that_two_sessions_may_have_received_stays(tmp_path: Path) -> None:
    """Two messages within 17 seconds gave their copies the same name, and the second one replaced the first."""
    async with OldData.open(tmp_path) as old:
        await old.upload(ADA, b"hers", is_stored=False)
        name = await old.upload(BOB, b"his", copy=b"edited", rest=1)
        await old.migrate()
        assert old.files_of(ADA) == {}
        assert list(old.files_of(BOB).values()) == [b"his"]
        assert (old.copies / name).read_bytes() == b"edited"


async def test_files_of_no_session_stay(tmp_path: Path) -> None:
    async with OldData.open(tmp_path) as old:
        await old.upload(ADA, b"hers")
        await old.begin(BOB)
        (old.copies / "0123abcd-1-of-a-deleted-session.txt").write_bytes(b"x")
        (old.copies / "thesis.pdf").write_bytes(b"y")
        (old.shared / "notes.txt").write_text("from everyone")
        with capture_logs() as logs:
            await old.migrate()
        assert sorted(path.name for path in old.copies.iterdir()) == [
            "0123abcd-1-of-a-deleted-session.txt",
            "thesis.pdf",
        ]
        assert (old.shared / "notes.txt").read_text() == "from everyone"
        (kept,) = [entry for entry in logs if entry["event"] == "shared_workspace_kept"]
        assert kept["folder"] == str(old.shared)
        assert 'agents.main.workspace = "shared"' in kept["hint"]
        assert not list(old.root.glob("main.private/*"))


async def test_copies_in_a_repo_go_to_their_sessions(tmp_path: Path) -> None:
    repo = tmp_path / "website"
    repo.mkdir()
    async with OldData.open(tmp_path, repos=[{"name": "website", "path": repo}]) as old:
        name = await old.upload(ADA, b"hers", copy=b"edited")
        old.copies.rename(repo / "attachments")
        (repo / "attachments" / "logo.png").write_bytes(b"of the repo")
        await old.migrate()
        assert old.files_of(ADA)[name] == b"edited"
        assert [path.name for path in (repo / "attachments").iterdir()] == ["logo.png"]


async def test_a_folder_that_one_scope_used_becomes_its_private_workspace(tmp_path: Path) -> None:
    async with OldData.open(tmp_path) as old:
        await old.upload(ADA, b"hers")
        (old.shared / "notes.txt").write_text("hers")
        await old.migrate()
        assert [path.name for path in old.private(ADA).iterdir()] == ["notes.txt"]
        assert old.private(ADA).stat().st_mode & 0o777 == 0o700
        assert not old.shared.exists()


@pytest.mark.parametrize("why", ["two scopes", "chosen agent", "no scope", "shared", "link"])
async def test_any_other_folder_stays_where_it_is(tmp_path: Path, why: str) -> None:
    agents = {"main": {"workspace": "shared" if why == "shared" else "private"}, "coder": {}}
    async with OldData.open(tmp_path, agents=agents) as old:
        if why != "no scope":
            await old.begin(ADA)
        if why == "two scopes":
            await old.begin(BOB)
        if why == "chosen agent":
            key = await old.begin("agent:coder:web:direct:bob", agent="coder")
            await old.sessions.set_agent(key, "main")
        (old.shared / "notes.txt").write_text("from everyone")
        if why == "link":
            old.shared.rename(tmp_path / "elsewhere")
            old.shared.symlink_to(tmp_path / "elsewhere")
        await old.migrate()
        assert (old.shared / "notes.txt").read_text() == "from everyone"
        assert not list(old.root.glob("*.private/*"))


async def test_an_unreadable_transcript_does_not_stop_the_migration(tmp_path: Path) -> None:
    async with OldData.open(tmp_path) as old:
        name = await old.upload(ADA, b"hers", is_stored=False)
        await old.begin(BOB)
        await old.sessions.flush()
        for file in (tmp_path / "data/sessions/transcripts").glob("*bob*"):
            file.unlink()
        await old.migrate()
        assert old.files_of(ADA) == {name: b"hers"}


async def test_a_session_cannot_name_a_folder_outside(tmp_path: Path) -> None:
    async with OldData.open(tmp_path) as old:
        name = await old.upload(ADA, b"hers", is_stored=False)
        old.copies.rename(tmp_path / "attachments")
        await old.sessions.set_agent(ADA, "../..")
        await old.migrate()
        assert (tmp_path / "attachments" / name).exists()


async def test_a_link_in_place_of_the_attachments_is_not_followed(tmp_path: Path) -> None:
    async with OldData.open(tmp_path) as old:
        name = await old.upload(ADA, b"hers", is_stored=False)
        await old.begin(BOB)
        old.copies.rename(tmp_path / "elsewhere")
        old.copies.symlink_to(tmp_path / "elsewhere")
        await old.migrate()
        assert old.files_of(ADA) == {}
        assert (tmp_path / "elsewhere" / name).read_bytes() == b"hers"


async def test_a_migration_that_a_crash_interrupted_is_finished_at_the_next_start(tmp_path: Path) -> None:
    """The crash came when the first file was in its new place, but had not been removed from the old one."""
    async with OldData.open(tmp_path) as old:
        first = await old.upload(ADA, b"one", is_stored=False)
        second = await old.upload(ADA, b"two", is_stored=False, at=NOW + timedelta(minutes=1))
        (old.shared / "notes.txt").write_text("hers")
        await old.store.keep(folder_of(ADA), first, chunks(b"one"), limit=100)
    async with OldData.open(tmp_path) as old:
        await old.migrate()
        assert old.files_of(ADA) == {first: b"one", second: b"two"}
        assert [path.name for path in old.private(ADA).iterdir()] == ["notes.txt"]


async def test_a_new_scope_does_not_get_the_folder_of_others(tmp_path: Path) -> None:
    """The old folder belonged to two people. Later, both are gone and a third one is the only one."""
    async with OldData.open(tmp_path) as old:
        await old.begin(ADA)
        await old.begin(BOB)
        (old.shared / "notes.txt").write_text("from everyone")
        await old.migrate()
        for scope in (ADA, BOB):
            await old.sessions.delete(scope)
        await old.begin("agent:main:web:direct:eve")
    async with OldData.open(tmp_path) as old:
        await old.migrate()
        assert (old.shared / "notes.txt").exists()
        assert not list(old.root.glob("main.private/*"))


async def test_a_start_after_a_crash_follows_the_plan_of_the_first_one(tmp_path: Path) -> None:
    async with OldData.open(tmp_path) as old:
        await old.begin(ADA)
        await old.begin(BOB)
        (old.shared / "notes.txt").write_text("hers")
        plan = msgspec.json.encode(MigrationPlan(moves={"main": ADA})).decode()
        await old.spool.commit(SetFact(name=MIGRATED, value=plan))
    async with OldData.open(tmp_path) as old:
        await old.migrate()
        assert (old.private(ADA) / "notes.txt").read_text() == "hers"


async def test_a_migrated_data_directory_is_not_migrated_again(tmp_path: Path) -> None:
    async with OldData.open(tmp_path) as old:
        await old.begin(ADA)
        await old.migrate()
        (old.root / "main").mkdir(exist_ok=True)
        (old.shared / "new.txt").write_text("since then")
        await old.migrate()
        assert (old.shared / "new.txt").exists()

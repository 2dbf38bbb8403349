"""Storages with data of all kinds, and everything in them in a form that can be compared."""

import hashlib
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from config import Settings
from config.files import make_private_directory
from gateway.admin.archive import open_stores
from gateway.contract import Address, PeerKind, Sender
from gateway.data_dir import DataDirLock
from gateway.sessions import entries as e
from gateway.spool import (
    CONFIGURED,
    AddReminder,
    AddRunUsage,
    AddSchedule,
    AddUsage,
    EndRun,
    FireSchedule,
    MarkDelivered,
    MarkSending,
    NewRun,
    PauseSchedule,
    Recurrence,
    ReminderContent,
    RunState,
    SaveDraft,
    ScheduleCheck,
    ScheduleContent,
    ScheduleState,
    SetFact,
    Spool,
    StartTurn,
)
from gateway.spool.copies import TABLES
from gateway.storage_copy.contents import StorageReader
from gateway.storage_copy.copy import CopyReport, OnProgress, copy_storage, ignore_progress
from gateway.storage_copy.database import BATCH_ENTRIES
from gateway.storage_copy.open import open_copy_source, open_copy_target
from tests.sessions.conftest import undo
from tests.sessions.samples import dialogue
from tests.spool.samples import NOW, RECEIPT, accept, send, take

ANN = Address(channel="web", kind=PeerKind.DIRECT, peer="ann")
SCOPE = "agent:main:web:direct:ann"
OTHER = "agent:main:web:direct:bøb 漢"


def settings(folder: Path, url: str = "files:") -> Settings:
    make_private_directory(folder)
    return Settings.model_validate({"gateway": {"data_dir": folder}, "storage": {"url": url}})


async def fill(configured: Settings) -> None:
    """Store sessions and rows of all kinds."""
    async with open_stores(configured) as (manager, spool):
        assert spool is not None
        for scope in (SCOPE, OTHER):
            for number in range(1, 5):
                meta = await manager.start_new(scope, agent="main", origin=ANN, title=f"{number} 🚂 ü 漢字")
                await manager.append(meta.key, dialogue(3)[2:])
                await manager.append(meta.key, [e.User(content="\u2028 'quotes' \\ \t \x01", turn="t9")])
        await undo(manager, SCOPE)
        await manager.append(SCOPE, [e.Summary(content="So far: …", from_seq=3, covers=8), e.Clear()])
        await manager.archive_session(f"{SCOPE}#2")
        await manager.archive_session(f"{OTHER}#3")
        await manager.delete(f"{SCOPE}#4")
        await manager.delete(OTHER)
        await manager.resume(SCOPE, 3)
        await spool.commit(
            *(take("e1"), accept("t1", "漢字 hello"), StartTurn(turn="t1"), take("e2"), accept("t2", at=NOW)),
            *(send("k1", "ü"), MarkSending(key="k1", at=NOW), MarkDelivered(key="k1", receipt=RECEIPT, at=NOW)),
            *(send("k2"), SaveDraft(turn="t1", receipt=RECEIPT, at=NOW)),
            *(SetFact(name=f"guest.{name}", value='{"name": "\u2028"}') for name in ("zoë", "Ann", "ann", "_")),
            *(
                AddUsage(day="2026-03-01", person=person, model="m", agent="main", input_tokens=7)
                for person in ("b", "a", "é")
            ),
        )
        await fill_schedules(spool)
        for number in range(3):
            await spool.commit(
                AddReminder(
                    id=f"r{number}",
                    scope=SCOPE,
                    due_at=NOW + timedelta(days=number),
                    cron=None,
                    about=ReminderContent(address=ANN, maker=Sender(id="ann"), text="tea 🍵"),
                    max_per_scope=10,
                    max_total=10,
                )
            )


async def fill_schedules(spool: Spool) -> None:
    """Store a schedule with runs and what they have cost, and one that was paused after a failure."""
    check = ScheduleCheck(url="https://example.org/ü", pointer="/items/0", on_change=True)
    made = ScheduleContent(
        address=ANN,
        maker=Sender(id="ann", name="Änn"),
        prompt="news? 🗞",
        when=Recurrence(cron="0 9 * * *", zone="Europe/Berlin"),
        created_at=NOW,
        check=check,
        jitter=60.0,
        cost_per_day=0.5,
    )
    configured = replace(made, maker=Sender(id="schedule:b", schedule="b"), when=Recurrence(every=60.0, start=NOW))
    for name, about in (("a", made), (f"{CONFIGURED}b", configured)):
        await spool.commit(
            AddSchedule(id=name, scope=SCOPE, due_at=NOW, about=about, max_per_scope=10, max_total=10),
            *(_run(name, number) for number in range(1, 4)),
            AddRunUsage(schedule=name, number=3, day="2026-03-01", tokens=9, cost_micros=4),
        )
    failure = EndRun(schedule="a", number=3, state=RunState.FAILED, at=NOW, note="why?\u2028", failures=1)
    await spool.commit(failure, PauseSchedule(id=f"{CONFIGURED}b", note="its last answer could not be delivered."))


def _run(name: str, number: int) -> FireSchedule:
    at = NOW + timedelta(days=number - 1)
    return FireSchedule(
        id=name,
        due_at=at,
        next_at=at + timedelta(days=1),
        planned_at=at + timedelta(days=1),
        at=at,
        state=ScheduleState.ACTIVE,
        run=NewRun(
            number=number, state=RunState.RUNNING if number == 3 else RunState.DONE, planned_at=at, session=f"{SCOPE}#3"
        ),
        seen="digest\netag",
        failures=0,
        note="",
    )


def copy(
    source: Settings, target: Settings, on_progress: OnProgress = ignore_progress, *, batch_entries: int = BATCH_ENTRIES
) -> CopyReport:
    with ExitStack() as stack:
        for folder in {source.gateway.data_dir, target.gateway.data_dir}:
            stack.enter_context(DataDirLock(folder))
        reader = stack.enter_context(open_copy_source(source.storage, source.gateway.data_dir))
        writer = stack.enter_context(
            open_copy_target(target.storage, target.gateway.data_dir, batch_entries=batch_entries)
        )
        return copy_storage(reader, writer, on_progress=on_progress)


def contents(configured: Settings) -> dict[str, object]:
    """Return everything in a storage."""
    with (
        DataDirLock(configured.gateway.data_dir),
        open_copy_source(configured.storage, configured.gateway.data_dir) as reader,
    ):
        return read_all(reader)


def read_all(reader: StorageReader) -> dict[str, object]:
    found: dict[str, object] = {
        session.key: (b"".join(session.lines), session.state, session.archived_at, session.why)
        for session in reader.sessions()
    }
    return found | {table: list(reader.rows(table)) for table in TABLES}


async def exports(configured: Settings) -> dict[str, bytes]:
    """Return the export of each session, as a gateway with this storage makes it."""
    async with open_stores(configured) as (manager, _):
        found = {}
        for scope in manager.scopes():
            for meta in manager.list(scope):
                found[meta.key] = b"".join([block async for block in manager.export_lines(meta.key)])
            for archived in await manager.archive.list(scope):
                found[f"archived {archived.key}"] = b"".join(
                    [block async for block in manager.archive.lines(archived.key)]
                )
        return found


def file_hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "gatehouse.lock"
    }

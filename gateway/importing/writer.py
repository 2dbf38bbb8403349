"""Writes what a plan says: sessions and memory. A crash leaves whole sessions, and a second run adds the rest."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from gateway.admin.archive import Archive
from gateway.errors import GatehouseError
from gateway.importing.plan import Plan, PlannedSession, Progress, read
from gateway.importing.transcript import session_id, to_transcript
from gateway.importing.values import Conversation, ForeignGateway, UnknownFormat

_PARALLEL = 8
"""Sessions that are sent at once. The storage commits them together."""


class ImportReport:
    """What was written. `failed` has a sentence for each session that was not, by its id."""

    def __init__(self) -> None:
        self.sessions = 0
        self.statements = 0
        self.failed: dict[str, str] = {}
        self.memory_failed: list[str] = []


async def write_plan(gateway: ForeignGateway, plan: Plan, archive: Archive, progress: Progress) -> ImportReport:
    """Write the sessions of a plan that are new, then the memory.

    The newest session of each scope comes first, so that it becomes active at once, even if the import is interrupted.
    """
    report = ImportReport()
    newest = {each.id: each for each in plan.new if each.activates}
    others = {each.id: each for each in plan.new if not each.activates}
    for planned in (newest, others):
        if planned:
            await _write_sessions(gateway, planned, archive, report, progress)
    for each in plan.memory:
        try:
            report.statements += await archive.import_memory(each.scope, each.memory)
        except GatehouseError as error:
            report.memory_failed.append(f"{each.file}: {error}")
    return report


async def _write_sessions(
    gateway: ForeignGateway,
    planned: dict[str, PlannedSession],
    archive: Archive,
    report: ImportReport,
    progress: Progress,
) -> None:
    # The reader waits while the storage is busy, so that memory holds few conversations at a time.
    queue: asyncio.Queue[tuple[Conversation, PlannedSession] | None] = asyncio.Queue(_PARALLEL)

    async def work() -> None:
        while (found := await queue.get()) is not None:
            conversation, session = found
            try:
                await archive.import_session(_blocks(conversation, session), activates=session.activates)
            except GatehouseError as error:
                report.failed[session.id] = str(error)
                continue
            report.sessions += 1
            progress("imported", report.sessions)

    left = dict(planned)
    missing = "it has disappeared since the plan was made; import again"
    async with asyncio.TaskGroup() as workers:
        for number in range(_PARALLEL):
            workers.create_task(work(), name=f"import:{number}")
        try:
            async for conversation in read(gateway, lambda _what, _number: None):
                if isinstance(conversation, Conversation):
                    session = left.pop(session_id(conversation), None)
                    if session is not None:
                        await queue.put((conversation, session))
                if not left:
                    break
        except UnknownFormat as error:
            missing = f"{error}; import again"
        for _ in range(_PARALLEL):
            await queue.put(None)
    for id_ in left:
        report.failed[id_] = missing


async def _blocks(conversation: Conversation, session: PlannedSession) -> AsyncIterator[bytes]:
    now = datetime.now(UTC)
    for line in to_transcript(conversation, session.destination, session.number, now, epoch=session.epoch):
        yield line

"""Copies everything from one storage to another, and reads the copy back to compare it."""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gateway.errors import Refused
from gateway.spool.copies import TABLES
from gateway.storage_copy.contents import Checksum, ChecksumCounter, StorageReader, StorageWriter
from gateway.text.plain import count

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyProgress:
    """`step` is "copy", "verify" or "finish"."""

    step: str
    done: int
    total: int


OnProgress = Callable[[CopyProgress], None]


def ignore_progress(_: CopyProgress) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """What was copied and compared."""

    sessions: int
    archived: int
    entries: int
    rows: dict[str, int]
    """By table of the spool."""
    resumed: int
    """Sessions that an interrupted run had copied already."""
    left_out: int
    """Damaged lines, and lines that were there twice."""
    unreadable: tuple[str, ...]
    """Names of files that could not be read, and are not in the copy."""


def do_nothing() -> None:
    """Finish at once."""


def copy_storage(
    source: StorageReader,
    target: StorageWriter,
    *,
    on_progress: OnProgress = ignore_progress,
    before_finish: Callable[[], None] = do_nothing,
) -> CopyReport:
    """Copy everything to an empty target. Blocks, for minutes if there is much.

    The caller keeps gateways away from both. The source is only read. A run that was interrupted is continued by the
    next one with the same source. Raises `Refused` if the target has other data, or the copy turns out to be wrong.
    `before_finish` is called when the copy is verified. Until it returns, no gateway can start with the target.
    """
    target.start(source.identity)
    checksums, archived, resumed = _copy_sessions(source, target, on_progress)
    target.finish_sessions(checksums.keys(), source.repos())
    tables: dict[str, Checksum] = {}
    for table in TABLES:
        counter = ChecksumCounter()
        target.write_table(table, counter.rows(source.rows(table)))
        tables[table] = counter.result()
    target.finish_tables()
    _verify(target, checksums, tables, on_progress)
    before_finish()
    on_progress(CopyProgress(step="finish", done=len(checksums), total=len(checksums)))
    target.finish()
    report = CopyReport(
        sessions=len(checksums) - archived,
        archived=archived,
        entries=sum(checksum.count for checksum in checksums.values()),
        rows={table: checksum.count for table, checksum in tables.items()},
        resumed=resumed,
        left_out=source.left_out,
        unreadable=tuple(source.unreadable),
    )
    log.info("storage_copied", source=source.identity, target=target.identity, sessions=report.sessions)
    return report


def _copy_sessions(
    source: StorageReader, target: StorageWriter, on_progress: OnProgress
) -> tuple[dict[str, Checksum], int, int]:
    """Return the checksum of each session, how many are archived, and how many an earlier run had copied."""
    checksums: dict[str, Checksum] = {}
    archived = resumed = 0
    total = source.session_count()
    for session in source.sessions():
        counter = ChecksumCounter()
        lines = counter.lines(session)
        if target.has(session):
            resumed += 1
            for _ in lines:
                pass
        else:
            target.add(session, lines)
        checksums[session.key] = counter.result()
        archived += session.archived_at is not None
        on_progress(CopyProgress(step="copy", done=len(checksums), total=max(total, len(checksums))))
    return checksums, archived, resumed


def _verify(
    target: StorageWriter, sessions: dict[str, Checksum], tables: dict[str, Checksum], on_progress: OnProgress
) -> None:
    """Read the copy back, and compare it with what was read from the source. Raises `Refused` if it differs."""
    reader = target.reader()
    missing = set(sessions)
    wrong: list[str] = []
    for done, session in enumerate(reader.sessions(), 1):
        counter = ChecksumCounter()
        for _ in counter.lines(session):
            pass
        missing.discard(session.key)
        if sessions.get(session.key) != counter.result():
            wrong.append(session.key)
        on_progress(CopyProgress(step="verify", done=done, total=len(sessions)))
    wrong += sorted(missing)
    wrong_tables = [name for name in TABLES if _checksum(reader, name) != tables[name]]
    reader.close()
    if wrong:
        target.discard(wrong)
    if wrong or wrong_tables:
        what = [*([count(len(wrong), "session")] if wrong else []), *(f"the table {name}" for name in wrong_tables)]
        raise Refused(f"The copy differs from its source: {', '.join(what)}. Run the command again to repair it.")


def _checksum(reader: StorageReader, table: str) -> Checksum:
    counter = ChecksumCounter()
    for _ in counter.rows(reader.rows(table)):
        pass
    return counter.result()

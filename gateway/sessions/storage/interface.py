"""The storage interface of sessions: what `SessionStore` needs from a folder of files, or from a database.

A storage says which operations make a change durable, and the caller commits them to the spool. So a change of a
session and everything that belongs to it are one commit, in each storage. All methods without `async` block: call them
in a thread. Those that read a session raise `OSError` if that is not possible now, and one of `LOST` if it is gone.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from gateway.aio import WorkerThread
from gateway.sessions.entries import Header
from gateway.sessions.index import SessionIndex
from gateway.sessions.recovery import Recovered
from gateway.sessions.session import SessionMeta
from gateway.sessions.state import SessionState
from gateway.sessions.storage.archive import ArchivedSession
from gateway.sessions.storage.journal import Journal, JournalLines
from gateway.sessions.storage.search import SearchDeadline, SearchResult
from gateway.sessions.storage.tail import StopCondition
from gateway.sessions.storage.transcript import TranscriptTail
from gateway.sessions.storage.transfer_files import ImportFile
from gateway.sessions.storage.verify import VerifyReport
from gateway.spool import Operation


class ExportReader(Protocol):
    """A transcript that is being exported, up to the entry that was the last one at the start."""

    def lines(self) -> list[bytes]:
        """Return the next lines, newlines included; an empty list at the end."""

    def close(self) -> None: ...


class Arrival(Protocol):
    """A session on its way out of the archive. `close` removes what is left of it."""

    def close(self) -> None: ...


class SessionArchive(Protocol):
    """The archived sessions."""

    def contains(self, key: str) -> bool:
        """Return True if a session is archived, even if it cannot be read."""

    def in_scope(self, scope: str) -> list[ArchivedSession]:
        """Return the archived sessions of a scope, newest first."""

    def find(self, key: str) -> ArchivedSession | None:
        """Return a session if it is in the archive. Raises `DamagedArchive`."""

    def find_by_id(self, session_id: str) -> ArchivedSession | None: ...

    def transcript(self, key: str) -> Iterator[bytes]:
        """Yield the transcript of a session in blocks, none of them empty. Raises `DamagedArchive`."""

    def transcript_names(self) -> list[str]:
        """Return the file names that the transcripts of all archived sessions have or had."""

    def expired(self, before: datetime, shards: Sequence[int] | None = None) -> list[str]:
        """Return keys of sessions that were archived before that time. Each call looks at a limited number.

        In a cluster, only those of some `shards` are of interest.
        """

    def delete(self, key: str) -> None:
        """Delete the copy of a session that is not archived: it was restored, or its archiving was given up."""


class SessionFlusher(Protocol):
    """Makes everything durable from time to time, and deletes what is left of removed sessions."""

    unflushed: dict[str, int]
    """By session, the highest seq that was committed since the last flush."""
    undeleted: set[str]
    """Keys of removed sessions whose files are not deleted yet."""
    unpurged: set[str]
    """Keys of deleted sessions whose files are gone. The next flush removes the last copies of their text."""
    failures: int
    """Flushes that failed since the last one that worked."""

    def start(self, undeleted: Collection[str], *, is_index_outdated: bool) -> None:
        """Start with the results of recovery."""

    async def flush(self) -> None: ...

    def paused(self) -> AbstractAsyncContextManager[Mapping[str, int]]:
        """Hold flushes back, and yield the size of each transcript by file name."""

    async def delete_transcript(self, key: str, successor: str | None = None, *, is_archived: bool = False) -> bool:
        """Delete what is left of a removed session. Returns False, after a log line, if that is not possible now."""

    async def finish(self) -> None:
        """Flush for the last time."""

    def stop(self) -> None:
        """End the threads. This blocks."""


class SessionStorage(Protocol):
    """All sessions of a gateway, on a disk or in a database."""

    waiting: int
    """Bytes that could not be written yet."""

    @property
    def archive(self) -> SessionArchive: ...

    @property
    def trouble(self) -> str | None:
        """The current problem as a sentence for the operator, or None."""

    def prepare(self) -> None:
        """Get ready for use. Raises `CannotStart` if that is impossible."""

    def close(self) -> None: ...

    def flusher(self, index: SessionIndex, thread: WorkerThread, journal: Journal | None) -> SessionFlusher: ...

    def replay(self, key: str, lines: JournalLines) -> int:
        """Add the `lines` that the transcript lacks, and return how many they were."""

    def recover(self, now: datetime, deleted: frozenset[str], shards: Sequence[int] | None = None) -> Recovered:
        """Find all sessions, or those of some shards. `deleted` has the keys of those with an unfinished deletion."""

    def append_operations(
        self, key: str, first_seq: int, lines: Sequence[bytes], state: Callable[[], SessionState]
    ) -> Sequence[Operation]:
        """Return the operations that append lines to a session. `state` returns its state after them."""

    def removal_operations(self, key: str) -> Sequence[Operation]: ...

    def archive_operations(self, session: ArchivedSession) -> Sequence[Operation]: ...

    def restore_operations(self, key: str) -> Sequence[Operation]: ...

    def import_operations(self, key: str, state: SessionState, arrival: ImportFile) -> Sequence[Operation]: ...

    def append(self, key: str, data: bytes, *, is_new: bool = False) -> None:
        """Write lines that were committed."""

    def read(self, key: str, stop: StopCondition | None = None, *, max_bytes: int | None = None) -> TranscriptTail:
        """Read the end of a session until `stop` is satisfied, or all of it."""

    def read_tail(self, key: str, messages: int, expected: SessionState) -> tuple[TranscriptTail, SessionState | None]:
        """Read the end of a session for its history. Also returns its state if that is not the expected one."""

    def read_header(self, key: str) -> Header | None: ...

    def recreate(self, key: str, data: bytes) -> None:
        """Write a transcript that is lost once more."""

    def snapshot(self, key: str) -> tuple[int, bytes]:
        """Return a mark of the end of a session, 0 if it is empty, and the lines that wait to be appended to it."""

    def export(self, key: str, end: int, after: int) -> ExportReader:
        """Open a session for reading up to the mark `end`, without most of the entries up to the seq `after`."""

    def whole_size(self, key: str) -> int:
        """Return the size of a transcript. Raises `OSError` unless all lines of the session are written."""

    def copy_to_archive(self, session: ArchivedSession, size: int) -> None:
        """Copy a session to the archive, if it has to be copied."""

    def open_import(self) -> ImportFile:
        """Open a place for the lines of a session that is being imported."""

    def place(self, key: str, arrival: ImportFile) -> None:
        """Give an imported session its place, after its operations were committed."""

    def extract(self, key: str) -> tuple[SessionState, Arrival]:
        """Prepare an archived session for its return. Raises `DamagedArchive`. The caller closes the arrival."""

    def place_durably(self, key: str, arrival: Arrival) -> None:
        """Give a session that comes from the archive its place."""

    def unlink(self, key: str) -> None:
        """Take back what `place_durably` did."""

    def remains(self, key: str) -> bool:
        """Return True if there is anything of a session: in the archive, or damaged and set aside."""

    def before_change(self) -> None:
        """Prepare for a change of the index that no operation records."""

    def search(
        self,
        sessions: Sequence[SessionMeta],
        words: Sequence[str],
        *,
        rare: Sequence[str],
        counted: Sequence[str],
        limit: int,
        width: int,
        max_bytes: int,
        deadline: SearchDeadline,
    ) -> SearchResult:
        """Find the messages of these sessions that contain all `words`, ignoring case, in the order of the sessions.

        Archived sessions may be among them. Each hit has a snippet of up to `width` characters, and says which of the
        `counted` words it contains. If it is known that some of the words are `rare`, an index looks up only these.
        """

    def sample(self, sessions: Sequence[SessionMeta], words: Sequence[str]) -> tuple[int, list[int]]:
        """Return the size of a sample of the messages of these sessions, and how many of them contain each word."""

    def verify(self) -> VerifyReport:
        """Check everything, and change nothing."""

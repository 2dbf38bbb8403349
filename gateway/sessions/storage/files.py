"""Sessions as files of one folder: transcripts, the index, and the archive."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from itertools import chain, islice
from pathlib import Path

import structlog
from msgspec.structs import replace

from config.files import Fsync
from gateway.aio import WorkerThread
from gateway.data_dir import unusable
from gateway.private_files import opened
from gateway.sessions import recovery
from gateway.sessions.entries import Header
from gateway.sessions.index import SessionIndex
from gateway.sessions.keys import file_name
from gateway.sessions.recovery import Recovered
from gateway.sessions.session import SessionMeta
from gateway.sessions.state import SessionState, SessionStatus
from gateway.sessions.storage import transcript
from gateway.sessions.storage.archive import ArchivedSession
from gateway.sessions.storage.archived_transcript import ArchivedTranscript, DamagedArchive
from gateway.sessions.storage.disk import Disk
from gateway.sessions.storage.flush import Flusher
from gateway.sessions.storage.interface import Arrival
from gateway.sessions.storage.journal import Journal, JournalLines, replay
from gateway.sessions.storage.search import (
    MESSAGES_PER_PLACE,
    SAMPLED_PLACES,
    SearchDeadline,
    SearchedSession,
    SearchResult,
    fold,
    lookup,
    read_lines,
    search,
    searched_text,
)
from gateway.sessions.storage.search_index import SearchIndex, line_at
from gateway.sessions.storage.tail import EnoughForHistory, EnoughForState
from gateway.sessions.storage.transcript import TranscriptTail, lines_backwards
from gateway.sessions.storage.transfer_files import ExportFile, ImportFile
from gateway.sessions.storage.verify import VerifyReport, verify
from gateway.spool import AppendEntries, DropEntries, Operation

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class FileStorage(Disk):
    """The storage of the files engine. The journal (the spool) has every line before its transcript is written."""

    def __init__(self, directory: Path, *, fsync: Fsync = os.fsync) -> None:
        super().__init__(directory, fsync=fsync)
        self.search_index = SearchIndex(directory / "search.db", self.transcripts, self.archive)

    def close(self) -> None:
        self.search_index.close()
        super().close()

    def prepare(self) -> None:
        try:
            super().prepare()
        except OSError as error:
            raise unusable(self.directory, error) from error

    def flusher(self, index: SessionIndex, thread: WorkerThread, journal: Journal | None) -> Flusher:
        return Flusher(self, index, thread, journal, self.search_index)

    def replay(self, key: str, lines: JournalLines) -> int:
        return replay(self, key, lines)

    def recover(self, now: datetime, deleted: frozenset[str], shards: Sequence[int] | None = None) -> Recovered:
        if shards is not None:
            raise NotImplementedError("only a database can be shared by the nodes of a cluster")
        try:
            return recovery.recover(self, now, deleted)
        except OSError as error:
            raise unusable(self.transcripts, error) from error

    def append_operations(
        self,
        key: str,
        first_seq: int,
        lines: Sequence[bytes],
        state: Callable[[], SessionState],  # noqa: ARG002 - the transcript has it.
    ) -> Sequence[Operation]:
        # The lines go to the journal as they will be in the transcript, so that a replay can compare bytes.
        return [AppendEntries(session=key, first_seq=first_seq, lines=tuple(lines))]

    def removal_operations(self, key: str) -> Sequence[Operation]:
        return [DropEntries(session=key)]

    def archive_operations(self, session: ArchivedSession) -> Sequence[Operation]:
        return [DropEntries(session=session.key)]  # Its copy is durable.

    def restore_operations(self, key: str) -> Sequence[Operation]:  # noqa: ARG002 - the place of its file says it.
        return []

    def import_operations(self, key: str, state: SessionState, arrival: ImportFile) -> Sequence[Operation]:  # noqa: ARG002 - as above.
        return []

    def read_tail(self, key: str, messages: int, expected: SessionState) -> tuple[TranscriptTail, SessionState | None]:
        """If the file does not have the expected size, another program has changed it. Its content is right."""
        tail = self.read(key, EnoughForHistory(messages, expected))
        size, waiting = self.snapshot(key)
        size += len(waiting)
        # A session that could not be read has that status in the index only. Its file says what it was before.
        if size == expected.size and expected.status is not SessionStatus.ERROR:
            return tail, None
        name = file_name(key)
        state = recovery.state_from(self.read(key, EnoughForState(lambda other: file_name(other) == name)))
        return tail, replace(state, size=size)

    def read_header(self, key: str) -> Header | None:
        return transcript.read_header(self.path(key))

    def export(self, key: str, end: int, after: int) -> ExportFile:
        return ExportFile(self.path(key), end, after)

    def copy_to_archive(self, session: ArchivedSession, size: int) -> None:
        path = self.path(session.key)
        # The journal forgets the session with its move. Until then the transcript has to be durable.
        transcript.sync(path, self.fsync)
        self.archive.write(session, path, size)

    def open_import(self) -> ImportFile:
        return ImportFile(self.transcripts, is_kept=True)

    def extract(self, key: str) -> tuple[SessionState, ImportFile]:
        arrival = self.open_import()
        try:
            for block in self.archive.transcript(key):
                arrival.write(block)
            header, state = arrival.finish()
        except BaseException:
            arrival.close()
            raise
        if header.key != key:
            arrival.close()
            raise DamagedArchive(f"it contains another session ({header.key})")
        return state, arrival

    def place_durably(self, key: str, arrival: Arrival) -> None:
        assert isinstance(arrival, ImportFile)  # noqa: S101 - it comes from `extract`.
        self.place_and_sync(key, arrival)

    def remains(self, key: str) -> bool:
        return any(path.exists() for path in (self.archive.path(key), *transcript.all_files(self.path(key))))

    def before_change(self) -> None:
        self.remove_clean_mark()

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
        searched = self._candidates(sessions, *lookup(words, rare))
        return search(
            searched, words, counted=counted, limit=limit, width=width, max_bytes=max_bytes, deadline=deadline
        )

    def sample(self, sessions: Sequence[SessionMeta], words: Sequence[str]) -> tuple[int, list[int]]:
        folded = [fold(word) for word in words]
        size, counts = self.search_index.sample([file_name(each.key) for each in sessions], folded)
        if size:
            return size, counts
        newest = islice(read_lines(self._candidates(sessions, (), ())), SAMPLED_PLACES * MESSAGES_PER_PLACE)
        texts = [text for _, line in newest if (text := searched_text(line))]
        return len(texts), [sum(word in text for text in texts) for word in folded]

    def _candidates(
        self, sessions: Sequence[SessionMeta], words: Sequence[str], compared: Sequence[str]
    ) -> Iterator[SearchedSession]:
        """Yield sessions with the lines that are not indexed, and those that may contain all words, last one first."""
        matches = self.search_index.matches([file_name(each.key) for each in sessions], words, compared)
        for each in sessions:
            name = file_name(each.key)
            size = 0 if matches is None else matches.sizes.get(name, 0)
            offsets: Iterable[int] = ()
            if matches is not None and size:
                # If they are too many, there are soon enough of them.
                offsets = (
                    self.search_index.offsets(name, words, compared)
                    if matches.offsets is None
                    else sorted(matches.offsets.get(name, ()), reverse=True)
                )
            lines = self._candidate_lines(each, size, offsets)
            yield SearchedSession(key=each.key, number=each.number, title=each.title, lines=lines)

    def _candidate_lines(self, session: SessionMeta, indexed: int, offsets: Iterable[int]) -> Iterator[bytes]:
        """Yield the lines behind the `indexed` bytes of a transcript, the last one first, then those at the offsets."""
        path, remaining = self.path(session.key), iter(offsets)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            first = next(remaining, None)
            if first is not None or session.size > indexed:  # It is archived.
                yield from self._archived_lines(
                    session.key, indexed, () if first is None else chain([first], remaining)
                )
            return
        if size < indexed:  # Another program has replaced it.
            indexed, remaining = 0, iter(())
        if size > indexed:
            yield from lines_backwards(path, indexed)
        if (first := next(remaining, None)) is not None:
            with opened(path) as descriptor:
                for offset in chain([first], remaining):
                    yield line_at(descriptor, offset)

    def _archived_lines(self, key: str, indexed: int, offsets: Iterable[int]) -> Iterator[bytes]:
        try:
            with closing(ArchivedTranscript(self.archive.path(key))) as archived:
                if archived.size > indexed:
                    yield from archived.lines_backwards(indexed)
                for offset in offsets:
                    yield archived.line_at(offset)
        except DamagedArchive as error:
            log.warning("archived_session_unreadable", session=key, reason=str(error))

    def verify(self) -> VerifyReport:
        return verify(self.index_path, self.transcripts, self.archive)

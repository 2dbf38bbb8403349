"""The file room: all that the rest of the gateway asks about files."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

import structlog

from config import Settings
from gateway.access.live import Live
from gateway.contract import Channel, Enclosure
from gateway.conversation import Message
from gateway.files.download import AttachmentDownloads
from gateway.files.outgoing import OutgoingFiles, with_pictures
from gateway.files.store import FileStore, folder_of
from gateway.files.to_text import Transcribe, Transcriber
from gateway.files.uploads import UPLOADS
from gateway.job import Job
from gateway.sessions import Leaving, SessionManager, SessionMeta

__all__ = ["Files", "drop_orphaned_files", "session_file_remover", "transcriber"]

log = structlog.get_logger()


class Files:
    def __init__(self, live: Live, store: FileStore, channels: Mapping[tuple[str, str], Channel]) -> None:
        self._live = live
        self._store = store
        self.downloads = AttachmentDownloads(live=live, store=store, channels=channels, transcribe=self._transcribe)

    def outgoing(self, job: Job, sent: Sequence[Enclosure]) -> OutgoingFiles:
        """Return what takes the files that a turn sends; `sent` are those it has sent already."""
        settings = self._live.settings.files
        return OutgoingFiles(
            store=self._store,
            folder=folder_of(job.session),
            turn=job.turn,
            max_files=settings.max_per_message,
            max_bytes=settings.max_bytes,
            count=len(sent),
        )

    async def with_pictures(self, messages: Sequence[Message], *, sees: bool) -> Sequence[Message]:
        """Give the newest pictures their bytes, for a model that sees them."""
        return await with_pictures(messages, self._store, sees=sees)

    async def path(self, ref: str) -> Path:
        """Return where a file is; `Refused` when it is not kept any more."""
        return (await self._store.find(ref)).path

    def _transcribe(self) -> Transcribe | None:
        return transcriber(self._live.settings)


def transcriber(settings: Settings) -> Transcribe | None:
    wanted = settings.transcription
    if wanted.provider is None:
        return None
    provider = settings.providers[wanted.provider]
    return Transcriber(base_url=provider.base_url, api_key=provider.api_key, model=wanted.model).transcribe


def session_file_remover(store: FileStore) -> Callable[[SessionMeta, Leaving], Coroutine[None, None, None]]:
    """Return what lets the files of a session go when it leaves the disk."""

    async def remove(meta: SessionMeta, why: Leaving) -> None:
        if why is not Leaving.ROTATED:
            await store.drop(folder_of(meta.key))

    return remove


async def drop_orphaned_files(store: FileStore, sessions: SessionManager) -> None:
    """Remove the files of sessions that were deleted while no daemon ran."""
    found = {*await store.folders()} - {UPLOADS}
    if not found:
        return
    kept = {folder_of(session.key) for scope in sessions.scopes() for session in sessions.list(scope)}
    for folder in found - kept:
        log.info("files_of_a_deleted_session_removed", folder=folder)
        await store.drop(folder)

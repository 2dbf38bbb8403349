"""Downloads the attachments of accepted messages, soon after acceptance and again after a crash."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial

import structlog

from gateway.access.rules import Live
from gateway.aio import backoff_delays
from gateway.bounded import BoundedDict
from gateway.contract import Attachment, AttachmentKind, Channel
from gateway.contract.abilities import abilities_of
from gateway.documents.conversion import DocumentConverter
from gateway.errors import ChannelError, Refused, Transient, Undeliverable
from gateway.files.identify import safe_name
from gateway.files.store import UPLOADS, FileStore, StoredFile, TooLarge, folder_of
from gateway.files.to_text import AttachmentReader, configured_transcriber, unavailable
from gateway.job import Job
from gateway.sessions import SessionManager, entries
from gateway.text.plain import in_bytes

log = structlog.get_logger()

MAX_PARALLEL = 8
"""Parallel downloads of one channel account. An unreachable platform does not delay the others."""
MAX_FAILURES = 1_000
"""Failed downloads to remember. A forgotten one is tried again."""


class AttachmentDownloads:
    """Downloads each attachment once. Call `start` when a message is accepted and `collect` in its turn.

    The name in the store follows from the turn and the position, so that a start after a crash finds earlier downloads.
    Neither call is needed for a message without attachments.
    """

    def __init__(
        self,
        *,
        live: Live,
        store: FileStore,
        sessions: SessionManager,
        channels: Mapping[tuple[str, str], Channel],
        documents: DocumentConverter,
    ) -> None:
        self._live = live
        self.store = store
        self._sessions = sessions
        self._channels = channels
        self.documents = documents
        self._group: asyncio.TaskGroup | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._slots: defaultdict[tuple[str, str], asyncio.Semaphore] = defaultdict(
            partial(asyncio.Semaphore, MAX_PARALLEL)
        )
        self._failed = BoundedDict[str, str](MAX_FAILURES)

    def open(self, group: asyncio.TaskGroup) -> None:
        """Run downloads as tasks of `group` from now on."""
        self._group = group

    def close(self) -> None:
        """Cancel running downloads. The next start repeats them."""
        self._group = None
        for task in self._running.values():
            task.cancel()

    def start(self, job: Job) -> None:
        """Start to download the attachments of a message."""
        if not job.inbound.attachments or self._group is None:
            return

        async def download_all() -> None:
            wanted = job.inbound.attachments[: self._live.settings.files.max_per_message]
            for number, file in enumerate(wanted, start=1):
                try:
                    await self._obtain(job, number, file)
                except Refused:  # The reason is remembered, and `collect` reports it.
                    continue

        task = self._group.create_task(download_all(), name=f"files:{job.turn}")
        self._running[job.turn] = task
        task.add_done_callback(lambda _: self._running.pop(job.turn, None))

    async def collect(self, job: Job) -> tuple[entries.Attached, ...]:
        """Return the attachments of a message as its transcript has them.

        An attachment that is not available becomes a note with the reason.
        """
        attachments = job.inbound.attachments
        if not attachments:
            return ()
        # `wait` does not cancel the download if this turn is cancelled, and does not raise its errors.
        if job.turn in self._running:
            await asyncio.wait({self._running[job.turn]})
        settings = self._live.settings.files
        reader = AttachmentReader(
            store=self.store,
            max_chars=settings.max_text_chars,
            transcribe=configured_transcriber(self._live.settings),
            documents=self.documents,
        )
        found: list[entries.Attached] = []
        for number, file in enumerate(attachments[: settings.max_per_message], start=1):
            try:
                stored = await self._obtain(job, number, file)
                found.append(await reader.read(file, stored))
            except Refused as reason:
                found.append(unavailable(file, str(reason)))
        if surplus := len(attachments) - len(found):
            note = f"[{surplus} more files came with this message and were ignored: {len(found)} is the limit.]"
            found.append(entries.Attached(name=f"{surplus} more", kind=AttachmentKind.FILE, note=note))
        return tuple(found)

    async def _obtain(self, job: Job, number: int, file: Attachment) -> StoredFile:
        """Return the file from the store, or download it. Raises `Refused` with the reason if that fails."""
        folder = folder_of(job.session)
        prefix = f"{job.turn}-{number}-"
        name = f"{prefix}{safe_name(file.name, file.kind)}"
        ref = f"{folder}/{name}"
        if ref in self._failed:
            raise Refused(self._failed[ref])
        # By prefix: an older version may have downloaded it, and made another name of the claimed one.
        if (found := await self.store.find_prefixed(folder, prefix)) is not None:
            return found
        address = job.inbound.address
        try:
            async with self._slots[address.channel, address.account]:
                stored = await self._transfer(job, file, folder, name)
            await self.store.require_session(job.session, stored, self._sessions)
        except Refused as reason:
            log.info("attachment_unavailable", channel=address.channel, turn=job.turn, reason=str(reason))
            self._failed[ref] = str(reason)
            raise
        return stored

    async def _transfer(self, job: Job, file: Attachment, folder: str, name: str) -> StoredFile:
        """Download the file. Raises `Refused` with a reason for the person."""
        address = job.inbound.address
        channel = self._channels.get((address.channel, address.account))
        if channel is None:
            raise Refused("its channel is no longer enabled")
        limit = self._live.settings.files.max_bytes
        if file.size > limit:
            raise Refused(f"it is too large; the limit is {in_bytes(limit)}")
        try:
            async with asyncio.timeout(self._live.settings.files.fetch_timeout):
                return await self._fetch(channel, job, file, folder, name)
        except TooLarge as end:
            raise Refused(f"it is too large; the limit is {in_bytes(end.limit)}") from end
        except TimeoutError as end:
            raise Refused("the download timed out") from end
        except Undeliverable as refusal:
            raise Refused(str(refusal)) from refusal
        except ChannelError as refusal:  # The channel is retired for that. The message still gets an answer.
            log.warning("attachment_download_failed", channel=channel.name, reason=str(refusal))
            raise Refused("its channel is not available now") from refusal
        except OSError as error:
            log.warning("attachment_not_stored", reason=error.strerror)
            raise Refused("it couldn't be stored") from error

    async def _fetch(self, channel: Channel, job: Job, file: Attachment, folder: str, name: str) -> StoredFile:
        """Fetch the file from the platform, or from the uploads if the channel has no platform to ask.

        Retries until the caller's timeout: after a crash the channel may not be connected yet.
        """
        fetches = abilities_of(channel).fetches
        if fetches is None:
            return await self.store.move(f"{UPLOADS}/{file.ref}", folder, name)
        limit = self._live.settings.files.max_bytes
        delays = backoff_delays(first=0.2, cap=10.0)
        while True:
            try:
                async with aclosing(fetches.fetch(file, job.inbound.address)) as chunks:
                    return await self.store.keep(folder, name, chunks, limit=limit)
            except Transient as error:
                await asyncio.sleep(next(delays) if error.retry_after is None else error.retry_after)
            except (ChannelError, TooLarge, OSError):
                raise
            except Exception as bug:  # A bug in a channel must not cost the person the answer to the message.
                log.exception("attachment_download_crashed", channel=channel.name)
                raise Refused("the channel failed with a bug, which is in the log") from bug

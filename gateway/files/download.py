"""Reception: fetches the files of accepted messages, soon after they were accepted and again after a crash."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path

import structlog

from gateway.access.live import Live
from gateway.aio import backoff_delays
from gateway.bounded import BoundedDict
from gateway.contract import Attachment, AttachmentKind, Channel, FetchesFiles
from gateway.contract.abilities import abilities_of
from gateway.errors import ChannelError, Refused, Transient, Undeliverable
from gateway.files.identify import in_bytes, safe_name
from gateway.files.store import FileStore, StoredFile, TooLarge, folder_of
from gateway.files.to_text import AttachmentReader, Transcribe, unavailable
from gateway.files.uploads import UPLOADS
from gateway.job import Job
from gateway.sessions import entries

__all__ = ["AttachmentDownloads"]

log = structlog.get_logger()

AT_ONCE = 8
"""Transfers of one channel that run side by side; the others wait. One whose platform is away holds up no other."""
REMEMBERED = 1_000
"""Files that are known not to come; one that is forgotten is asked for again."""


class AttachmentDownloads:
    """`start` when a message was accepted; `collect` in its turn. A file is fetched once, whoever asks first.

    Its name in the store follows from its turn and place, so that a start after a crash finds what was fetched.
    """

    def __init__(
        self,
        *,
        live: Live,
        store: FileStore,
        channels: Mapping[tuple[str, str], Channel],
        transcribe: Callable[[], Transcribe | None],
    ) -> None:
        self._live = live
        self._store = store
        self._channels = channels
        self._transcribe = transcribe
        self._group: asyncio.TaskGroup | None = None
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._slots: defaultdict[tuple[str, str], asyncio.Semaphore] = defaultdict(partial(asyncio.Semaphore, AT_ONCE))
        self._lost = BoundedDict[str, str](REMEMBERED)

    def open(self, group: asyncio.TaskGroup) -> None:
        """Fetch in tasks of `group` from now on."""
        self._group = group

    def close(self) -> None:
        """Leave what is being fetched to the next start."""
        self._group = None
        for task in self._fetching.values():
            task.cancel()

    def start(self, job: Job) -> None:
        """Start to fetch the files of a message, if it has any."""
        if job.inbound.attachments and self._group is not None:
            task = self._group.create_task(self._fetch_all(job), name=f"files:{job.turn}")
            self._fetching[job.turn] = task
            task.add_done_callback(lambda _: self._fetching.pop(job.turn, None))

    async def collect(self, job: Job, workspace: Path) -> tuple[entries.Attached, ...]:
        """Return the files of a message as its transcript has them. One that cannot be had is a note that says why."""
        if not job.inbound.attachments:
            return ()
        if job.turn in self._fetching:
            await asyncio.wait({self._fetching[job.turn]})
        settings = self._live.settings.files
        reader = AttachmentReader(
            store=self._store,
            workspace=workspace,
            label=job.turn[:8],
            max_chars=settings.max_text_chars,
            max_saved_bytes=settings.max_stored_bytes,
            transcribe=self._transcribe(),
        )
        wanted = job.inbound.attachments[: settings.max_per_message]
        found = [await self._receive(reader, job, number, file) for number, file in enumerate(wanted, start=1)]
        return (*found, *_surplus(len(job.inbound.attachments) - len(wanted), len(wanted)))

    async def _receive(self, reader: AttachmentReader, job: Job, number: int, file: Attachment) -> entries.Attached:
        try:
            stored = await self._fetch(job, number, file)
            return await reader.read(file, stored, number)
        except Refused as reason:
            return unavailable(file, str(reason))

    async def _fetch_all(self, job: Job) -> None:
        wanted = job.inbound.attachments[: self._live.settings.files.max_per_message]
        for number, file in enumerate(wanted, start=1):
            try:
                await self._fetch(job, number, file)
            except Refused:  # It is remembered, and told when its turn comes.
                continue

    async def _fetch(self, job: Job, number: int, file: Attachment) -> StoredFile:
        """Have the file in the store; `Refused` says why it will not be."""
        folder = folder_of(job.session)
        name = f"{job.turn}-{number}-{safe_name(file.name, file.kind)}"
        ref = f"{folder}/{name}"
        if ref in self._lost:
            raise Refused(self._lost[ref])
        try:
            return await self._store.find(ref)
        except Refused:
            pass
        try:
            address = job.inbound.address
            async with self._slots[address.channel, address.account]:
                return await self._transfer(job, file, folder, name)
        except Refused as reason:
            log.info("file_not_fetched", channel=job.inbound.address.channel, turn=job.turn, reason=str(reason))
            self._lost[ref] = str(reason)
            raise

    async def _transfer(self, job: Job, file: Attachment, folder: str, name: str) -> StoredFile:
        address = job.inbound.address
        channel = self._channels.get((address.channel, address.account))
        if channel is None:
            raise Refused("the channel that it came by is not enabled any more")
        limit = self._live.settings.files.max_bytes
        too_large = f"it is too large; files of up to {in_bytes(limit)} are taken"
        if file.size > limit:
            raise Refused(too_large)
        try:
            async with asyncio.timeout(self._live.settings.files.fetch_timeout):
                return await self._bring(channel, job, file, folder, name)
        except (TooLarge, TimeoutError) as end:
            raise Refused(too_large if isinstance(end, TooLarge) else "it did not arrive in time") from end
        except Undeliverable as refusal:
            raise Refused(str(refusal)) from refusal
        except ChannelError as refusal:  # Its channel is retired for that; the message is answered all the same.
            log.warning("file_not_given", channel=channel.name, reason=str(refusal))
            raise Refused("the channel that it came by cannot be used now") from refusal
        except OSError as trouble:
            log.warning("file_not_kept", reason=trouble.strerror)
            raise Refused("it could not be written to the disk") from trouble

    async def _bring(self, channel: Channel, job: Job, file: Attachment, folder: str, name: str) -> StoredFile:
        fetches = abilities_of(channel).fetches
        if fetches is None:
            return await self._store.move(f"{UPLOADS}/{file.ref}", folder, name)
        try:
            return await self._download(fetches, job, file, folder, name)
        except (ChannelError, TooLarge, OSError):
            raise
        except Exception as bug:  # One adapter's bug must not cost the person the answer to the rest of the message.
            log.exception("fetch_crashed", channel=channel.name)
            raise Refused("the channel failed with a bug; the log has it") from bug

    async def _download(self, fetches: FetchesFiles, job: Job, file: Attachment, folder: str, name: str) -> StoredFile:
        """Try until it is there. After a crash the channel may not be connected yet."""
        limit = self._live.settings.files.max_bytes
        for wait in backoff_delays(first=0.2, cap=10.0):
            try:
                async with aclosing(fetches.fetch(file, job.inbound.address)) as chunks:
                    return await self._store.keep(folder, name, chunks, limit=limit)
            except Transient as trouble:
                await asyncio.sleep(wait if trouble.retry_after is None else trouble.retry_after)
        raise AssertionError("a backoff has no end")


def _surplus(count: int, taken: int) -> list[entries.Attached]:
    if count <= 0:
        return []
    note = f"[{count} more files came with this message and were not taken: {taken} is the most.]"
    return [entries.Attached(name=f"{count} more", kind=AttachmentKind.FILE, note=note)]

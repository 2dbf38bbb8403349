"""A delivery over a real spool, with a scripted channel and a clock that stands still."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gateway.contract import Address, Channel, Deliver, Outbound, PeerKind, Receipt, TextLimit
from gateway.errors import ChannelError, Refused
from gateway.outbound.delivery import Delivery
from gateway.spool import OutboxState, Spool
from gateway.tracing import Tracer

ADDRESS = Address(channel="wire", kind=PeerKind.DIRECT, peer="ada")


HELLO = Outbound(address=ADDRESS, text="hello")


class Wire:
    """A channel that fails as scripted, first in first out, and then accepts."""

    name = "wire"
    account = "default"
    text_limit = TextLimit(size=60)

    def __init__(self, *failures: ChannelError | Exception) -> None:
        self.failures = list(failures)
        self.accepted: list[tuple[str, Outbound]] = []
        self.tried: list[str] = []

    async def run(self, _deliver: Deliver) -> None:
        await asyncio.Event().wait()

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        self.tried.append(key)
        if self.failures:
            raise self.failures.pop(0)
        self.accepted.append((key, message))
        return Receipt(message_id=key)

    @property
    def texts(self) -> list[str]:
        return [message.text for _, message in self.accepted]


class FileWire(Wire):
    """A channel that also takes files, and fails with these first, in their order."""

    max_file_bytes = 2_000

    def __init__(self, *file_failures: ChannelError) -> None:
        super().__init__()
        self.file_failures = list(file_failures)
        self.files: list[tuple[str, str, Path]] = []

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        if self.file_failures:
            raise self.file_failures.pop(0)
        self.files.append((key, message.text, path))
        return Receipt(message_id=key)


class Time:
    """A clock that stands still but for sleeping."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, tzinfo=UTC)
        self.naps: list[float] = []
        self.has_slept = asyncio.Event()

    def __call__(self) -> datetime:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += timedelta(seconds=seconds)
        await asyncio.sleep(0)
        self.has_slept.set()


FilePath = Callable[[str], Awaitable[Path]]


async def nothing_kept(ref: str) -> Path:
    raise Refused(f"{ref} is not kept.")


class Post:
    """A delivery over a real spool."""

    def __init__(
        self,
        spool: Spool,
        channels: dict[tuple[str, str], Channel],
        time: Time,
        file_path: FilePath = nothing_kept,
        max_parts: int = 0,
        tracer: Tracer | None = None,
    ) -> None:
        self.spool = spool
        self.delivery = Delivery(
            channels,
            spool,
            now=time,
            sleep=time.sleep,
            file_path=file_path,
            max_parts=lambda _: max_parts,
            tracer=tracer,
        )

    async def say(self, message: Outbound, key: str, turn: str | None = None) -> None:
        parts = self.delivery.compose(message, key=key, turn=turn)
        await self.spool.commit(*parts)
        self.delivery.post(parts)

    async def arrived(self) -> None:
        await self.delivery.chats.drained()

    async def states(self) -> dict[str, OutboxState]:
        found, listing = await self.spool.recover(), await self.spool.listing()
        return {row.key: row.state for row in (*found.outbox, *listing.outbox)}


@asynccontextmanager
async def posting(
    folder: Path,
    *channels: Channel,
    time: Time | None = None,
    file_path: FilePath = nothing_kept,
    max_parts: int = 0,
    tracer: Tracer | None = None,
) -> AsyncIterator[Post]:
    by_identity = {(channel.name, channel.account): channel for channel in channels}
    async with asyncio.timeout(60), await Spool.open(folder) as spool, asyncio.TaskGroup() as tasks:
        post = Post(spool, by_identity, time or Time(), file_path, max_parts, tracer)
        post.delivery.chats.open(tasks)
        yield post
        post.delivery.chats.stop_all("")

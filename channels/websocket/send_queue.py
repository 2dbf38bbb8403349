"""The bounded queue of frames that wait to be sent to one client."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from channels.websocket.wire import DraftFrame, MessageFrame, ServerFrame, encode

MAX_FRAMES = 256
MAX_BYTES = 8 * 1024 * 1024
"""The queue is full above this size. The last frame may exceed it, so the real bound is this plus one frame."""
PAUSE_READING_AT = 64
"""With this many frames in the queue, the server stops reading from the client until the client has caught up."""


class SendQueue:
    """Frames for one client, in order.

    A newer draft replaces an unsent one in its place, and the finished message removes its draft. A full queue drops
    its drafts first. If it is still full, it calls `abort` once: the client does not read, and it gets the missed
    frames from the history or the mailbox when it reconnects.
    """

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort_connection = abort
        # Drafts are stored under their key, all other frames under a running number.
        self._frames: OrderedDict[int | str, tuple[ServerFrame, bytes]] = OrderedDict()
        self._bytes = 0
        self._numbers = count()
        self._has_frames = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._is_short = asyncio.Event()
        self._is_short.set()
        self._is_aborted = False

    def put(self, frame: ServerFrame) -> None:
        """Queue `frame` without waiting."""
        if self._is_aborted:
            return
        if isinstance(frame, DraftFrame):
            if frame.key not in self._frames and self._is_full:
                return  # A later draft or the finished message has the same text and more.
            slot: int | str = frame.key
        else:
            if isinstance(frame, MessageFrame):
                self._remove(frame.key)
            if self._is_full:
                for key in [key for key, (queued, _) in self._frames.items() if isinstance(queued, DraftFrame)]:
                    self._remove(key)
            if self._is_full:
                self.abort()
                return
            slot = next(self._numbers)
        data = encode(frame)
        if slot in self._frames:
            self._bytes -= len(self._frames[slot][1])
        self._frames[slot] = (frame, data)
        self._bytes += len(data)
        self._has_frames.set()
        self._is_empty.clear()
        if len(self._frames) >= PAUSE_READING_AT:
            self._is_short.clear()

    def abort(self) -> None:
        """Break the connection of a client that does not read."""
        self._is_aborted = True
        self._is_short.set()  # The reading side must wake up to see that the connection is gone.
        self._abort_connection()

    def unsent(self) -> list[ServerFrame]:
        return [frame for frame, _ in self._frames.values()]

    async def get(self) -> bytes:
        """Wait for the next frame and return it encoded. From then on it counts as sent."""
        while not self._frames:
            self._has_frames.clear()  # No `await` since the check, so no `put` can be missed.
            await self._has_frames.wait()
        _, (_, data) = self._frames.popitem(last=False)
        self._bytes -= len(data)
        if len(self._frames) < PAUSE_READING_AT:
            self._is_short.set()
        if not self._frames:
            self._is_empty.set()
        return data

    async def wait_until_short(self) -> None:
        """Wait until fewer than `PAUSE_READING_AT` frames are queued, or the connection is aborted."""
        await self._is_short.wait()

    async def wait_until_empty(self) -> None:
        """Wait until all frames count as sent."""
        await self._is_empty.wait()

    @property
    def _is_full(self) -> bool:
        return len(self._frames) >= MAX_FRAMES or self._bytes >= MAX_BYTES

    def _remove(self, slot: int | str) -> None:
        if (removed := self._frames.pop(slot, None)) is not None:
            self._bytes -= len(removed[1])

"""One connection's way out: a bounded queue that a slow reader cannot make grow."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from channels.websocket.wire import Draft, Message, ServerFrame, encode

__all__ = ["Outlet"]

MAX_FRAMES = 256
MAX_BYTES = 8 * 1024 * 1024
"""How much may wait before the queue is full; one frame may go over it, so the real bound is this and a frame."""
CALM = 64
"""With more frames than this waiting, the client is not listened to: who asks faster than they read has to wait."""

_Slot = int | str


class Outlet:
    """Frames on their way to one client, in order.

    A newer draft takes the place of one that still waits, and the finished message makes its draft needless. When the
    queue is full, drafts are given up first; if that is not enough, `abort` is called once: the client is not reading,
    and what it missed it gets from the history when it comes back.
    """

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._waiting: OrderedDict[_Slot, tuple[ServerFrame, bytes]] = OrderedDict()
        self._bytes = 0
        self._slots = count()
        self._has_some = asyncio.Event()
        self._is_calm = asyncio.Event()
        self._is_calm.set()
        self._is_broken = False

    def offer(self, frame: ServerFrame) -> None:
        """Queue `frame`; never waits."""
        if self._is_broken:
            return
        if isinstance(frame, Draft):
            self._offer_draft(frame)
            return
        if isinstance(frame, Message):
            self._take(frame.key)
        if self._is_full:
            self._drop_drafts()
        if self._is_full:
            self.give_up()
            return
        self._put(next(self._slots), frame)

    def give_up(self) -> None:
        """Break the connection: its client takes nothing."""
        self._is_broken = True
        self._is_calm.set()
        self._abort()

    def unsent(self) -> list[ServerFrame]:
        return [frame for frame, _ in self._waiting.values()]

    async def next(self) -> bytes:
        """Wait for the next frame, encoded. A frame that was returned counts as sent."""
        while not self._waiting:
            self._has_some.clear()
            await self._has_some.wait()
        _, (_, data) = self._waiting.popitem(last=False)
        self._bytes -= len(data)
        if len(self._waiting) < CALM:
            self._is_calm.set()
        return data

    async def calm(self) -> None:
        """Wait until not much is waiting, or the connection is broken."""
        await self._is_calm.wait()

    def _offer_draft(self, draft: Draft) -> None:
        if draft.key in self._waiting:
            self._bytes -= len(self._waiting[draft.key][1])
            self._put(draft.key, draft)
        elif not self._is_full:
            self._put(draft.key, draft)

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) >= MAX_FRAMES or self._bytes >= MAX_BYTES

    def _put(self, slot: _Slot, frame: ServerFrame) -> None:
        data = encode(frame)
        self._waiting[slot] = (frame, data)
        self._bytes += len(data)
        self._has_some.set()
        if len(self._waiting) >= CALM:
            self._is_calm.clear()

    def _take(self, slot: _Slot) -> None:
        if (taken := self._waiting.pop(slot, None)) is not None:
            self._bytes -= len(taken[1])

    def _drop_drafts(self) -> None:
        for slot in [slot for slot, (frame, _) in self._waiting.items() if isinstance(frame, Draft)]:
            self._take(slot)

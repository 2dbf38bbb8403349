"""Lanes: items of one key run one at a time and in order. Different keys run concurrently; idle keys cost nothing."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Generic, TypeVar

from msgspec import Struct, field

Item = TypeVar("Item")


class LaneFull(Exception):
    """`waiting` items are already queued in this lane, or in all lanes together."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} are waiting")
        self.waiting = waiting


class _Lane(Struct, Generic[Item]):
    waiting: deque[Item] = field(default_factory=deque)
    running: asyncio.Task[None] | None = None
    is_stopping: bool = False
    is_parked: bool = False
    is_reserved: bool = False
    """Nothing starts before the item for which the lane is reserved has come, or the reservation is released."""
    first: Item | None = None
    """The item that the lane was reserved for. It starts in the next iteration of the event loop."""
    item: Item | None = None
    """The running item."""
    started: float = 0.0
    stop_reason: str | None = None
    """Set if `first` was stopped before it could start: it is cancelled as soon as it runs."""


class Lanes(Generic[Item]):
    """Calls `run` with one item at a time per key. `run` must not raise, and must stop when it is cancelled.

    `run` may return an item that it has taken out of the queue, or None. That item runs next.
    """

    def __init__(
        self,
        run: Callable[[Item], Coroutine[None, None, Item | None]],
        *,
        name: str,
        max_waiting: int | None = None,
        max_total: int | None = None,
        on_removed: Callable[[Item], None] = lambda _: None,
    ) -> None:
        self._run = run
        self._name = name
        self.max_waiting = max_waiting
        self.max_total = max_total
        self._on_removed = on_removed
        self._lanes: dict[str, _Lane[Item]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False
        self.waiting = 0
        self.parked_count = 0

    def open(self, group: asyncio.TaskGroup) -> None:
        """Run lanes as tasks of `group` from now on."""
        self._group = group

    @property
    def running(self) -> int:
        """How many items run, without the parked ones."""
        return sum(lane.running is not None and not lane.is_parked for lane in self._lanes.values())

    def longest_running(self, limit: int) -> list[tuple[Item, float]]:
        """Return up to `limit` running items with their seconds, the oldest first. Parked items are included."""
        lanes = sorted((lane for lane in self._lanes.values() if lane.item is not None), key=lambda lane: lane.started)
        return [(lane.item, monotonic() - lane.started) for lane in lanes[:limit] if lane.item is not None]

    def current(self) -> list[tuple[str, Item]]:
        """Return the running item of each key, or the one that is about to run."""
        found = ((key, lane.first if lane.item is None else lane.item) for key, lane in self._lanes.items())
        return [(key, item) for key, item in found if item is not None]

    def keys(self) -> list[str]:
        """Return the keys that have work."""
        return list(self._lanes)

    def items(self) -> Iterator[Item]:
        """Yield all items that run or wait."""
        for lane in self._lanes.values():
            yield from (item for item in (lane.first, lane.item, *lane.waiting) if item is not None)

    @property
    def busy_count(self) -> int:
        """How many lanes have work, without those whose running item is parked."""
        return len(self._lanes) - self.parked_count

    def is_busy(self, key: str) -> bool:
        return key in self._lanes

    def has_waiting(self, key: str) -> bool:
        return key in self._lanes and bool(self._lanes[key].waiting)

    def check_room(self, key: str) -> None:
        """Raise `LaneFull` if `put` would exceed a limit."""
        lane = self._lanes.get(key)
        if lane is not None and self.max_waiting is not None and len(lane.waiting) >= self.max_waiting:
            raise LaneFull(len(lane.waiting))
        if self.max_total is not None and self.waiting >= self.max_total:
            raise LaneFull(self.waiting)

    def put(self, key: str, item: Item) -> None:
        """Queue `item` behind the others of its key. Accepts items that are already committed, even above the limit."""
        if self._is_closed:
            return
        self.waiting += 1
        if (lane := self._lanes.get(key)) is not None:
            lane.waiting.append(item)
            return
        lane = self._lanes[key] = _Lane(deque([item]))
        self._idle.clear()
        self._start(key, lane)

    # Reserving a lane: a message may begin its turn in the same commit that accepts it, but only if no other item
    # runs or waits before it. The commit takes a while, so the lane is reserved first:
    # 1. `reserve` succeeds only for an idle lane. Items that others put in after that wait.
    # 2. When the commit has succeeded, `put_reserved` adds the item in front of them and starts the lane.
    # 3. `release` ends the reservation if the commit failed. The items that others put in start then.

    def reserve(self, key: str) -> bool:
        """Reserve an idle lane for an item that is about to be committed. Returns False if the lane is busy."""
        if key in self._lanes or self._is_closed:
            return False
        self._lanes[key] = _Lane(is_reserved=True)
        self._idle.clear()
        return True

    def put_reserved(self, key: str, item: Item) -> None:
        """Start the item that the lane was reserved for. It counts as running: it can be stopped, but not taken out."""
        lane = self._lanes.get(key)
        if lane is None or not lane.is_reserved or self._is_closed:
            self.put(key, item)
            return
        lane.first = item
        self.release(key)

    def release(self, key: str) -> None:
        """End the reservation of a lane, if it still has one, and start the items that came since."""
        lane = self._lanes.get(key)
        if lane is None or not lane.is_reserved:
            return
        lane.is_reserved = False
        if lane.waiting or lane.first is not None:
            self._start(key, lane)
        else:
            del self._lanes[key]
            self._update_idle()

    def _start(self, key: str, lane: _Lane[Item]) -> None:
        assert self._group is not None, "lanes are opened before anything is put in"  # noqa: S101 - for mypy and the reader
        self._group.create_task(self._work(key, lane), name=f"{self._name}:{key}")

    def replace_waiting(self, key: str, change: Callable[[Item], Item]) -> bool:
        """Replace each waiting item of `key` by `change(item)`. Returns whether any of them changed."""
        lane = self._lanes.get(key)
        if lane is None:
            return False
        changed = [change(item) for item in lane.waiting]
        is_changed = any(new is not old for new, old in zip(changed, lane.waiting, strict=True))
        lane.waiting = deque(changed)
        return is_changed

    def take_waiting(self, key: str, *, until: Callable[[Item], bool] | None = None) -> list[Item]:
        """Remove and return the waiting items of `key`, up to the first for which `until` holds."""
        lane = self._lanes.get(key)
        taken: list[Item] = []
        while lane is not None and lane.waiting and not (until and until(lane.waiting[0])):
            taken.append(lane.waiting.popleft())
        self.waiting -= len(taken)
        for item in taken:
            self._on_removed(item)
        return taken

    def put_back(self, key: str, items: Sequence[Item]) -> None:
        """Undo `take_waiting`: queue `items` in front of those that came since."""
        lane = self._lanes.get(key)
        if lane is None or self._is_closed:
            for item in items:
                self.put(key, item)
            return
        self.waiting += len(items)
        lane.waiting.extendleft(reversed(items))

    def take_next(self, key: str, suits: Callable[[Item], bool]) -> Item | None:
        """Remove and return the next waiting item of `key`, if it `suits`. The running item continues with it."""
        lane = self._lanes.get(key)
        if lane is None or not lane.waiting or not suits(lane.waiting[0]):
            return None
        self.waiting -= 1
        return lane.waiting.popleft()

    def stop(self, key: str, reason: str = "") -> bool:
        """Cancel the running item of `key` with `reason`, once. Returns False if nothing was there to cancel."""
        lane = self._lanes.get(key)
        if lane is not None and lane.first is not None and lane.stop_reason is None:
            lane.stop_reason = reason
            return True
        # A stopped item may still be reporting how it ended. A second cancellation would cut that short.
        if lane is None or lane.running is None or lane.is_stopping:
            return False
        lane.is_stopping = True
        self._park(lane, is_parked=False)
        return lane.running.cancel(reason)

    def stop_all(self, reason: str) -> None:
        """Cancel all running items, drop the waiting ones, and ignore every later `put`. All of them are committed."""
        self._is_closed = True
        for key in list(self._lanes):
            self.take_waiting(key)
            self.stop(key, reason)

    def abort(self) -> None:
        """Cancel every running item again, also those that were stopped and have not ended yet."""
        for lane in self._lanes.values():
            if lane.running is not None:
                lane.is_stopping = True
                lane.running.cancel()

    def detach(self, key: str) -> None:
        """Free the lane of `key` if nothing waits in it, although its item still runs.

        For an item whose results are all committed and that only cleans up: the next item of `key` gets a new lane and
        starts at once. `drained` does not wait for a detached item.
        """
        lane = self._lanes.get(key)
        if lane is not None and not lane.waiting:
            del self._lanes[key]
            self._update_idle()

    @contextmanager
    def parked(self, key: str) -> Iterator[None]:
        """Mark the running item of `key` as waiting for a person. `drained` and `busy_count` leave its lane out."""
        lane = self._lanes[key]
        self._park(lane, is_parked=True)
        try:
            yield
        finally:
            self._park(lane, is_parked=False)

    def _park(self, lane: _Lane[Item], *, is_parked: bool) -> None:
        self.parked_count += is_parked - lane.is_parked
        lane.is_parked = is_parked
        self._update_idle()

    def _update_idle(self) -> None:
        if self.parked_count == len(self._lanes):
            self._idle.set()
        else:
            self._idle.clear()

    async def drained(self) -> None:
        """Return once nothing runs and nothing waits, apart from parked items and those that wait behind them."""
        await self._idle.wait()

    async def _work(self, key: str, lane: _Lane[Item]) -> None:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"  # noqa: S101 - for mypy and the reader
        try:
            while lane.waiting or lane.first is not None:
                lane.running, lane.is_stopping = task, False
                if lane.first is None:
                    item = lane.waiting.popleft()
                    self.waiting -= 1
                else:
                    item, lane.first = lane.first, None
                    if lane.stop_reason is not None:
                        lane.is_stopping = True
                        task.cancel(lane.stop_reason)
                try:
                    following: Item | None = item
                    while following is not None:
                        lane.item, lane.started = following, monotonic()
                        following = await self._run(following)
                except asyncio.CancelledError:
                    if not lane.is_stopping:
                        raise
                    # `stop` cancelled the item, not the lane. Clear the cancellation and go on with the next item.
                    while task.uncancel():
                        pass
                lane.running = lane.item = None
        finally:
            # There is no await between the last look at the queue and this line, so no item can be missed.
            # A detached lane is no longer in the dictionary, or a new one has taken its key.
            if self._lanes.get(key) is lane:
                del self._lanes[key]
                self._update_idle()

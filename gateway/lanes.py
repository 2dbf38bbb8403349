"""Lanes: work of one key runs one at a time and in order; keys run side by side, and cost nothing while idle."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["LaneFull", "Lanes"]

Item = TypeVar("Item")


class LaneFull(Exception):
    """`waiting` items stand before this one already, in its lane or in all of them."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} are waiting")
        self.waiting = waiting


@dataclass(slots=True)
class _Lane(Generic[Item]):
    waiting: deque[Item] = field(default_factory=deque)
    running: asyncio.Task[None] | None = None
    is_stopping: bool = False
    is_parked: bool = False
    is_held: bool = False
    """For an item that is yet to come: nothing is started before."""
    first: Item | None = None
    """The item that it was held for: that waits for nobody, and runs as soon as the loop comes round."""
    stopped_for: str | None = None
    """Why that one is to be cancelled as soon as it runs."""


class Lanes(Generic[Item]):
    """`run` is called with one item at a time per key. It must not raise, and must let itself be cancelled."""

    def __init__(
        self,
        run: Callable[[Item], Coroutine[None, None, None]],
        *,
        name: str,
        max_waiting: int | None = None,
        max_in_all: int | None = None,
        on_taken_out: Callable[[Item], None] = lambda _: None,
    ) -> None:
        self._run = run
        self._name = name
        self.max_waiting = max_waiting
        self.max_in_all = max_in_all
        self._on_taken_out = on_taken_out
        self._lanes: dict[str, _Lane[Item]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False
        self.waiting = 0
        self.resting = 0
        """How many items are parked."""

    def open(self, group: asyncio.TaskGroup) -> None:
        """Start lanes as tasks of `group` from now on."""
        self._group = group

    @property
    def running(self) -> int:
        """How many items are being worked on, without those that are parked."""
        return sum(lane.running is not None and not lane.is_parked for lane in self._lanes.values())

    @property
    def at_work(self) -> int:
        """How many keys have work, without those whose work is parked."""
        return len(self._lanes) - self.resting

    def is_busy(self, key: str) -> bool:
        return key in self._lanes

    def has_waiting(self, key: str) -> bool:
        return key in self._lanes and bool(self._lanes[key].waiting)

    def check_room(self, key: str) -> None:
        """Raise `LaneFull` when `put` would have no room; between the two there must be no pause."""
        lane = self._lanes.get(key)
        if lane is not None and self.max_waiting is not None and len(lane.waiting) >= self.max_waiting:
            raise LaneFull(len(lane.waiting))
        if self.max_in_all is not None and self.waiting >= self.max_in_all:
            raise LaneFull(self.waiting)

    def put(self, key: str, item: Item) -> None:
        """Queue `item` behind the others of its key. What is durable already is taken even when there is no room."""
        if self._is_closed:
            return
        self.waiting += 1
        if (lane := self._lanes.get(key)) is not None:
            lane.waiting.append(item)
            return
        lane = self._lanes[key] = _Lane(deque([item]))
        self._idle.clear()
        self._start(key, lane)

    def hold(self, key: str) -> bool:
        """Keep an idle lane for an item that is yet to be made durable; tell whether it was idle.

        What others put in meanwhile waits behind that item. A hold is ended by `put_first` or `release`.
        """
        if key in self._lanes or self._is_closed:
            return False
        self._lanes[key] = _Lane(is_held=True)
        self._idle.clear()
        return True

    def put_first(self, key: str, item: Item) -> None:
        """Put in the item that the lane of `key` was held for. It counts as one that runs: it can be stopped only."""
        lane = self._lanes.get(key)
        if lane is None or not lane.is_held or self._is_closed:
            self.put(key, item)
            return
        lane.first = item
        self.release(key)

    def release(self, key: str) -> None:
        """End the hold of a lane, if there still is one, with what has been put in meanwhile."""
        lane = self._lanes.get(key)
        if lane is None or not lane.is_held:
            return
        lane.is_held = False
        if lane.waiting or lane.first is not None:
            self._start(key, lane)
        else:
            del self._lanes[key]
            self._note_whether_idle()

    def _start(self, key: str, lane: _Lane[Item]) -> None:
        assert self._group is not None, "lanes are opened before anything is put in"  # noqa: S101 - for mypy and the reader
        self._group.create_task(self._work(key, lane), name=f"{self._name}:{key}")

    def change(self, key: str, change: Callable[[Item], Item]) -> bool:
        """Put `change(item)` in the place of each item that waits under `key`; tell whether that was another one."""
        lane = self._lanes.get(key)
        if lane is None:
            return False
        changed = [change(item) for item in lane.waiting]
        is_other = any(new is not old for new, old in zip(changed, lane.waiting, strict=True))
        lane.waiting = deque(changed)
        return is_other

    def take_waiting(self, key: str, *, until: Callable[[Item], bool] | None = None) -> list[Item]:
        """Take out of the queue of `key` what waits there, up to the first item for which `until` holds."""
        lane = self._lanes.get(key)
        taken: list[Item] = []
        while lane is not None and lane.waiting and not (until and until(lane.waiting[0])):
            taken.append(lane.waiting.popleft())
        self.waiting -= len(taken)
        for item in taken:
            self._on_taken_out(item)
        return taken

    def put_back(self, key: str, items: Sequence[Item]) -> None:
        """Undo `take_waiting`: they stand before what was put in since."""
        lane = self._lanes.get(key)
        if lane is None or self._is_closed:
            for item in items:
                self.put(key, item)
            return
        self.waiting += len(items)
        lane.waiting.extendleft(reversed(items))

    def take_next(self, key: str, suits: Callable[[Item], bool]) -> Item | None:
        """Take out what would come next under `key`, if it `suits`: what runs there goes on with it."""
        lane = self._lanes.get(key)
        if lane is None or not lane.waiting or not suits(lane.waiting[0]):
            return None
        self.waiting -= 1
        return lane.waiting.popleft()

    def stop(self, key: str, reason: str = "") -> bool:
        """Cancel what runs under `key`, once; tell whether that was anything. `reason` comes with the cancellation."""
        lane = self._lanes.get(key)
        if lane is not None and lane.first is not None and lane.stopped_for is None:
            lane.stopped_for = reason
            return True
        # What was stopped is still telling how it ended; it must not be cut short at that.
        if lane is None or lane.running is None or lane.is_stopping:
            return False
        lane.is_stopping = True
        self._park(lane, is_parked=False)
        return lane.running.cancel(reason)

    def stop_all(self, reason: str) -> None:
        """Cancel everything that runs, and forget everything that waits or is put in from now on: it is durable."""
        self._is_closed = True
        for key in list(self._lanes):
            self.take_waiting(key)
            self.stop(key, reason)

    def abandon(self) -> None:
        """Cut short also what was stopped and has not come to an end."""
        for lane in self._lanes.values():
            if lane.running is not None:
                lane.is_stopping = True
                lane.running.cancel()

    def let_go(self, key: str) -> None:
        """Let what runs under `key` stand in nobody's way any more, if nobody waits: all that counts of it is done."""
        lane = self._lanes.get(key)
        if lane is not None and not lane.waiting:
            del self._lanes[key]
            self._note_whether_idle()

    @contextmanager
    def parked(self, key: str) -> Iterator[None]:
        """While inside, what runs under `key` waits for somebody else: neither it nor its queue is waited for."""
        lane = self._lanes[key]
        self._park(lane, is_parked=True)
        try:
            yield
        finally:
            self._park(lane, is_parked=False)

    def _park(self, lane: _Lane[Item], *, is_parked: bool) -> None:
        self.resting += is_parked - lane.is_parked
        lane.is_parked = is_parked
        self._note_whether_idle()

    def _note_whether_idle(self) -> None:
        if self.resting == len(self._lanes):
            self._idle.set()
        else:
            self._idle.clear()

    async def drained(self) -> None:
        """Return once nothing runs and nothing waits, but for what is parked and what waits behind that."""
        await self._idle.wait()

    async def _work(self, key: str, lane: _Lane[Item]) -> None:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"  # noqa: S101 - for mypy and the reader
        try:
            while lane.waiting or lane.first is not None:
                lane.running, lane.is_stopping = task, False
                item = self._next(lane)
                try:
                    await self._run(item)
                except asyncio.CancelledError:
                    if not lane.is_stopping:
                        raise
                    # It was the item that was to end, not the lane.
                    while task.uncancel():
                        pass
                lane.running = None
        finally:
            # No await stands between the last look at the queue and this line, so nothing can slip in unseen.
            if self._lanes.get(key) is lane:
                del self._lanes[key]
                self._note_whether_idle()

    def _next(self, lane: _Lane[Item]) -> Item:
        """Take out what runs next; it is cancelled already if it was stopped before it could run."""
        if lane.first is None:
            self.waiting -= 1
            return lane.waiting.popleft()
        item, lane.first = lane.first, None
        if lane.stopped_for is not None and lane.running is not None:
            lane.is_stopping = True
            lane.running.cancel(lane.stopped_for)
        return item

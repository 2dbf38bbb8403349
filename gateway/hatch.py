"""A hatch between an event loop and a thread: what is put in during one round of the loop wakes the thread once."""

import asyncio
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

__all__ = ["Hatch"]

Item = TypeVar("Item")


class Hatch(Generic[Item]):
    """One event loop puts in, one thread takes out, and both keep the order.

    Waking a thread costs more than most of what it is woken for: it wants the interpreter, which the loop has.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Item] = []
        self._later: asyncio.TimerHandle | None = None
        self._is_due = False
        self._queue: SimpleQueue[list[Item] | None] = SimpleQueue()

    def put(self, item: Item, *, patience: float = 0.0) -> None:
        """Hand `item` over after this round of the loop; with `patience`, when others go, or so many seconds later."""
        self._gathered.append(item)
        if patience:
            self._later = self._later or self._loop.call_later(patience, self._hand_over)
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._hand_over)

    def close(self) -> None:
        """Hand over what is left. Nothing may be put in afterwards."""
        self._hand_over()
        self._queue.put(None)

    def take(self) -> list[Item]:
        """Wait, in the thread, for what was put in, and take all of it. Nothing means: that was all."""
        taken: list[Item] = []
        items = self._queue.get()
        while items is not None:
            taken += items
            try:
                items = self._queue.get_nowait()
            except Empty:
                return taken
        if taken:
            self._queue.put(None)
        return taken

    def _hand_over(self) -> None:
        self._is_due = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._gathered:
            self._queue.put(self._gathered)
            self._gathered = []

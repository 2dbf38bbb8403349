"""`BoundedDict`: a dict with a maximum size, for caches and for remembering recent events."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedDict(OrderedDict[Key, Value]):
    """Assigning a key makes it the newest; beyond `limit` keys the oldest is dropped.

    Reading does not change the order. For a least recently used cache, call `move_to_end` on each use. `on_drop` is
    called with each entry that was dropped for the limit, not with entries that were deleted.
    """

    def __init__(self, limit: int, *, on_drop: Callable[[Key, Value], None] | None = None) -> None:
        super().__init__()
        self._limit = limit
        self._on_drop = on_drop

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._limit:
            dropped = self.popitem(last=False)
            if self._on_drop is not None:
                self._on_drop(*dropped)

"""Memory: the garbage collector looks seldom, and what a rush of messages has left goes back to the system."""

import gc
from contextlib import suppress

__all__ = ["give_back", "settle"]

_NEW_OBJECTS = 10_000
"""More new objects than old ones have gone, before it looks: a tenth of a message's time would else be spent on it."""


def settle() -> None:
    """Leave out what was loaded until now, and look less often: what a message leaves goes by itself."""
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)


def give_back() -> None:
    """Have the C library return what it holds and nobody uses: a tenth of all, after a rush. Takes milliseconds."""
    import ctypes  # noqa: PLC0415 - an idle daemon never needs it

    with suppress(OSError, AttributeError):  # Other C libraries than GNU's do so by themselves, or never.
        ctypes.CDLL("libc.so.6").malloc_trim(0)

"""How often the garbage collector looks: seldom. What is loaded stays, and what a message leaves goes by itself."""

import gc

__all__ = ["settle"]

_NEW_OBJECTS = 10_000
"""More new objects than old ones have gone, before it looks: a tenth of a message's time would else be spent on it."""


def settle() -> None:
    """Leave out what was loaded until now, and look less often from now on."""
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)

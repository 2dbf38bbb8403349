"""What can go wrong with a commit; classes differ only where the reaction differs.

GatehouseError
├── Refusal                 this call alone was not stored; its neighbours were
│   ├── Duplicate           it is there already
│   ├── WrongState          the row is not in a state from which this is allowed
│   ├── Conflict            the same entry of a transcript was noted before, with other bytes
│   └── TooMany             there is no room for another of its kind
├── Transient
│   └── SpoolFull           nothing was stored; try again when there is room
└── SpoolBroken             nothing can be stored any more; the daemon has to end
"""

from gateway.errors import GatehouseError, Transient

__all__ = ["Conflict", "Duplicate", "Refusal", "SpoolBroken", "SpoolFull", "TooMany", "WrongState"]


class Refusal(GatehouseError):
    pass


class Duplicate(Refusal):
    pass


class WrongState(Refusal):
    pass


class Conflict(Refusal):
    pass


class TooMany(Refusal):
    pass


class SpoolFull(Transient):
    pass


class SpoolBroken(GatehouseError):
    """What was being committed may or may not be on disk; only a new start can tell."""

"""How much is tried: 1 with the other tests, more by `make crash`."""

import os

__all__ = ["SCALE"]

SCALE = int(os.environ.get("GATEHOUSE_CRASH_SCALE", "1"))

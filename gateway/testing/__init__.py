"""What the tests of a channel need, shipped so that anybody's channel can be held to what ours are.

`gateway.testing.suite` has the contract suite and needs pytest with pytest-asyncio; what is here needs neither.
"""

from gateway.testing.doubles import Core, StubBrowser, StubPulse, context, running
from gateway.testing.far_side import NOT_TAKEN, FarSide, GetsFiles, HandsOverFiles

__all__ = [
    "NOT_TAKEN",
    "Core",
    "FarSide",
    "GetsFiles",
    "HandsOverFiles",
    "StubBrowser",
    "StubPulse",
    "context",
    "running",
]

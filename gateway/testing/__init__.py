"""Test doubles and a contract suite for channels, for third parties too.

`gateway.testing.suite` contains the contract suite, which needs pytest and pytest-asyncio. This module needs neither.
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

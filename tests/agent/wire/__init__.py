"""Local servers that speak the wire formats of model APIs, for tests with the real SDKs in between.

    async with serving(OPENAI, OPENAI.answer("Hel", "lo")) as server:
        settings = {"providers": {"fake": server.table()}, "agents": {"main": {"provider": "fake", "model": "m"}}}

A script is a list of replies, played first in first out; the last one is repeated. A reply is a list of chunks, each
written and flushed by itself: bytes, `CUT` (the connection is reset), or an `asyncio.Event` that is waited for. A
`Refusal` is an error with a status. `server.requests` keeps what was asked.
"""

from tests.agent.wire.anthropic import ANTHROPIC
from tests.agent.wire.dialect import Call, Dialect, Refusal
from tests.agent.wire.openai import OPENAI
from tests.agent.wire.server import CUT, Chunk, Reply, Request, WireServer, serving

__all__ = [
    "ANTHROPIC",
    "CUT",
    "OPENAI",
    "Call",
    "Chunk",
    "Dialect",
    "Refusal",
    "Reply",
    "Request",
    "WireServer",
    "serving",
]

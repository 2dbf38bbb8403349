"""Local servers that speak the wire formats of model APIs, for tests.

    async with serving(OPENAI, OPENAI.answer("Hel", "lo")) as server:
        settings = {"providers": {"fake": server.table()}, "agents": {"main": {"provider": "fake", "model": "m"}}}

A script is a list of replies, sent in order. The last one repeats. A reply is a list of chunks: bytes, which are
flushed at once, `CUT`, which resets the connection, or an `asyncio.Event` to wait for. A `Refusal` is an error with a
status. `server.requests` has all requests.
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

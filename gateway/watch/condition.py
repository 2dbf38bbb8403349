"""The condition of the gateway: whether it is ready, and what is wrong or about to be."""

from collections.abc import Iterator

from gateway.files.identify import in_bytes
from gateway.http.routes import Health
from gateway.watch.organs import Organs

__all__ = ["Condition"]

_COMMIT_STUCK_AFTER = 10.0
"""Seconds that one commit may take before readiness says so; a flush, which syncs many files, may take longer."""
_FLUSH_STUCK_AFTER = 60.0
_LITTLE_ROOM = 200 * 1024 * 1024
_NO_ROOM = 1024 * 1024
"""Bytes; a disk with less is as good as full, also while nobody has tried to write."""
_NEARLY_FULL = 0.8
_FAILURES_IN_A_ROW = 3


class Condition:
    """Not ready: a channel is down, or what is accepted might not be kept. Degraded: messages are still taken."""

    def __init__(self, organs: Organs) -> None:
        self._organs = organs

    def health(self) -> Health:
        organs = self._organs
        channels = organs.channels.health()
        troubles = tuple(self._troubles())
        are_up = all(channel.state == "up" for channel in channels)
        return Health(
            ready=are_up and not troubles and not organs.is_stopping(),
            channels=channels,
            troubles=troubles,
            warnings=tuple(self._warnings()),
        )

    def _troubles(self) -> Iterator[str]:
        sessions, spool, flushes = self._organs.sessions, self._organs.spool, self._organs.flushes
        free = self._organs.space.free
        if free is not None and free < _NO_ROOM:
            yield f"The disk of the data directory is full: {in_bytes(free)} are free. Make room there."
        if sessions.trouble is not None:
            yield sessions.trouble
        if spool.trouble is not None:
            yield spool.trouble
        if spool.busy_for() > _COMMIT_STUCK_AFTER:
            yield "The disk has not answered for a while."
        if flushes.busy_for() > _FLUSH_STUCK_AFTER:
            yield f"Conversations have been on their way to the disk for {flushes.busy_for():.0f} seconds."

    def _warnings(self) -> Iterator[str]:
        space, lanes = self._organs.space, self._organs.lanes
        limit = lanes.max_in_all
        if space.free is not None and _NO_ROOM <= space.free < _LITTLE_ROOM:
            yield f"Only {in_bytes(space.free)} are free on the disk of the data directory; make room there."
        if limit is not None and lanes.waiting > _NEARLY_FULL * limit:
            yield f"{lanes.waiting} messages wait for their turn, and at most {limit} may (gateway.max_queued)."
        for server in self._organs.mcp:
            if server.trouble:
                # Why is in the server's own words, which are not for a chat.
                yield f"The MCP server {server.name} cannot be used; the log says why."
        for model in self._organs.roster().passed_over():
            yield f"The model {model} has failed a moment ago, and another is asked in its place."
        for model, times in self._organs.tally.failing.items():
            if times >= _FAILURES_IN_A_ROW:
                yield f"The model {model} has failed {times} times in a row; the log says why."

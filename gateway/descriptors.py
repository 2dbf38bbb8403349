"""File descriptors: how many this process may open, and how many of them connections from outside may take."""

import resource
from contextlib import suppress

ENOUGH = 8_192
"""More are of no use to the daemon, and some programs take long to start if they may open millions."""
MAX_RESERVE = 256
"""Descriptors for everything but HTTP: session files, the spool, connections to platforms and models, programs."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit of this process as far as it is allowed and useful. Return the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # A sandbox may forbid it. The old limit works too.
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return descriptor_limit()


def descriptor_limit() -> int:
    """Return how many descriptors this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ENOUGH if soft == resource.RLIM_INFINITY else soft


def connections_within(limit: int, *, is_in_cluster: bool = False) -> int:
    """Return how many connections the HTTP server may have open. Other descriptors are reserved for all other work.

    In a cluster, each may need a second descriptor: for the connection that forwards its request to another node.
    """
    available = limit - min(MAX_RESERVE, limit // 2)
    return available // 2 if is_in_cluster else available

"""Supervision of one channel: keep it running, know how it is doing, retire it when its token is refused."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import StrEnum

import structlog

from gateway.aio import backoff_delays
from gateway.contract import Channel, Deliver
from gateway.errors import AuthRejected, NotAccepted, Transient

__all__ = ["ChannelPulse", "ChannelState", "supervise"]

log = structlog.get_logger()

BACKOFF_RESET_AFTER = 60.0
"""A channel that was up this long starts its backoff anew."""


class ChannelState(StrEnum):
    STARTING = "starting"
    UP = "up"
    DOWN = "down"
    RETIRED = "retired"


class ChannelPulse:
    """The last thing known about a channel; a change is logged once, not each retry."""

    def __init__(self, name: str, account: str) -> None:
        self.name = name
        self.account = account
        self.state = ChannelState.STARTING
        self.reason = ""
        self.since = datetime.now(UTC)
        self.last_error = ""
        self.last_error_at: datetime | None = None

    def up(self) -> None:
        if self._turn(ChannelState.UP, ""):
            log.info("channel_up", channel=self.name, account=self.account)

    def down(self, reason: str) -> None:
        if self._turn(ChannelState.DOWN, reason):
            log.warning("channel_lost", channel=self.name, account=self.account, reason=reason)

    def retire(self, reason: str) -> None:
        self._turn(ChannelState.RETIRED, reason)
        log.error("channel_retired", channel=self.name, account=self.account, reason=reason)

    def _turn(self, state: ChannelState, reason: str) -> bool:
        if reason:
            self.last_error, self.last_error_at = reason, datetime.now(UTC)
        changed = state is not self.state
        if changed:
            self.since = datetime.now(UTC)
        self.state, self.reason = state, reason
        return changed


async def supervise(
    channel: Channel,
    deliver: Deliver,
    pulse: ChannelPulse,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] | None = None,
) -> None:
    """Run `channel` until cancelled, starting it anew with growing pauses; return only when it is retired."""
    clock = clock or asyncio.get_running_loop().time
    waits = backoff_delays()
    while True:
        started = clock()
        asked: float | None = None
        try:
            await _run_apart(channel, deliver)
            pulse.down("it ended by itself")
        except AuthRejected as refusal:
            pulse.retire(str(refusal))
            return
        except NotAccepted as refusal:  # The platform is fine: the gateway is shutting down, or its disk is full.
            log.warning("message_not_accepted", channel=channel.name, account=channel.account, reason=str(refusal))
            asked = refusal.retry_after
        except Transient as trouble:
            pulse.down(str(trouble))
            asked = trouble.retry_after
        except Exception as bug:  # One adapter's bug must not silence the others.
            pulse.down(f"it crashed ({type(bug).__name__})")
            log.exception("channel_crashed", channel=channel.name, account=channel.account)
        if clock() - started > BACKOFF_RESET_AFTER:
            waits = backoff_delays()
        await sleep(asked if asked is not None else next(waits))


async def _run_apart(channel: Channel, deliver: Deliver) -> None:
    """Run `channel` as a task of its own, so that a cancellation ends us however the channel ends then.

    Whether we were cancelled cannot be told afterwards: before Python 3.13, a task group that fails leaves its mark.
    """
    name = f"run:{channel.name}:{channel.account}"
    running = asyncio.get_running_loop().create_task(channel.run(deliver), name=name)
    try:
        await asyncio.wait({running})
    finally:
        running.cancel()
        await asyncio.wait({running})
        failure = None if running.cancelled() else running.exception()
    if failure is not None:
        raise failure

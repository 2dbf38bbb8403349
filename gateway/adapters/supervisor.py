"""Supervises one channel: restarts it with backoff, tracks its state, and retires it when its token is rejected."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import StrEnum

import structlog

from gateway.aio import backoff_delays
from gateway.contract import Channel, Deliver
from gateway.errors import AuthRejected, NotAccepted, Transient

log = structlog.get_logger()

BACKOFF_RESET_AFTER = 60.0
"""Seconds. The backoff of a channel that ran for longer starts again with the shortest delay."""


class ChannelState(StrEnum):
    STARTING = "starting"
    UP = "up"
    DOWN = "down"
    RETIRED = "retired"


class ChannelPulse:
    """The current state of a channel. Logs a change of state once, and not each retry."""

    def __init__(self, name: str, account: str) -> None:
        self.name = name
        self.account = account
        self.state = ChannelState.STARTING
        self.reason = ""
        self.since = datetime.now(UTC)
        self.last_error = ""
        self.last_error_at: datetime | None = None

    def up(self) -> None:
        if self._change(ChannelState.UP, ""):
            log.info("channel_up", channel=self.name, account=self.account)

    def down(self, reason: str) -> None:
        if self._change(ChannelState.DOWN, reason):
            log.warning("channel_lost", channel=self.name, account=self.account, reason=reason)

    def retire(self, reason: str) -> None:
        self._change(ChannelState.RETIRED, reason)
        log.error("channel_retired", channel=self.name, account=self.account, reason=reason)

    def _change(self, state: ChannelState, reason: str) -> bool:
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
    """Run `channel` until cancelled, and restart it with backoff. Returns only if the channel is retired."""
    clock = clock or asyncio.get_running_loop().time
    delays = backoff_delays()
    while True:
        started = clock()
        retry_after: float | None = None
        try:
            await _run(channel, deliver)
            pulse.down("the channel stopped unexpectedly")
        except AuthRejected as rejected:
            pulse.retire(str(rejected))
            return
        except NotAccepted as refusal:  # The platform is fine: the gateway is shutting down, or cannot store anything.
            log.warning("message_not_accepted", channel=channel.name, account=channel.account, reason=str(refusal))
            retry_after = refusal.retry_after
        except Transient as failure:
            pulse.down(str(failure))
            retry_after = failure.retry_after
        except Exception as bug:  # One channel's bug must not silence the others.
            pulse.down(f"the channel crashed ({type(bug).__name__})")
            log.exception("channel_crashed", channel=channel.name, account=channel.account)
        if clock() - started > BACKOFF_RESET_AFTER:
            delays = backoff_delays()
        await sleep(retry_after if retry_after is not None else next(delays))


async def _run(channel: Channel, deliver: Deliver) -> None:
    """Run `channel` in its own task, so that cancelling us always ends `supervise`.

    1. We are cancelled, and the channel fails while it ends. Its error must not start the loop of `supervise` again.
    2. Asking the current task whether it was cancelled does not help: before Python 3.13, a task group that fails
       inside the channel leaves `cancelling()` raised.
    3. So the channel runs in another task. A cancellation of ours comes out of `asyncio.wait` here, no matter what the
       channel raises.
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

"""The channels that are open now: opened by their settings, kept running, and changed when the settings change."""

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType

import structlog

from config import ChannelSettings, Settings
from gateway.contract import Browser, Channel, ChannelContext, Deliver, HasRoutes, Route
from gateway.http.routes import ChannelHealth
from gateway.plugins import find_channel
from gateway.supervisor import ChannelPulse, supervise

__all__ = ["Channels", "Identity"]

log = structlog.get_logger()

Identity = tuple[str, str]
"""Channel and account: one bot identity."""


@dataclass(slots=True, kw_only=True)
class _Open:
    settings: ChannelSettings
    channel: Channel
    pulse: ChannelPulse
    task: asyncio.Task[None] | None = None


class Channels:
    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._open: dict[Identity, _Open] = {}
        self._by_identity: dict[Identity, Channel] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._deliver: Deliver | None = None

    @property
    def by_identity(self) -> Mapping[Identity, Channel]:
        """A view that stays current."""
        return MappingProxyType(self._by_identity)

    def open(self, settings: Settings) -> None:
        """Open what `settings` enable and close what they no longer do; raises with nothing changed."""
        wanted = _wanted(settings)
        changed = {
            identity: self._make(identity, options)
            for identity, options in wanted.items()
            if identity not in self._open or self._open[identity].settings != options
        }
        gone: AbstractSet[Identity] = self._open.keys() - wanted.keys()
        if self._tasks is not None:
            gone, changed = self._without_routes(gone, changed)
        for identity in [*changed, *gone]:
            self._close(identity)
        for identity, fresh in changed.items():
            self._open[identity] = fresh
            self._by_identity[identity] = fresh.channel
            self._start(fresh)

    def start(self, tasks: asyncio.TaskGroup, deliver: Deliver) -> None:
        """Let the channels read, each under supervision, in tasks of `tasks`."""
        self._tasks, self._deliver = tasks, deliver
        for each in self._open.values():
            self._start(each)

    def stop(self) -> None:
        """Close every channel."""
        self._tasks = None
        for identity in list(self._open):
            self._close(identity)

    def routes(self) -> list[Route]:
        return [
            route
            for each in self._open.values()
            if isinstance(each.channel, HasRoutes)
            for route in each.channel.routes()
        ]

    def health(self) -> tuple[ChannelHealth, ...]:
        return tuple(
            ChannelHealth(
                name=each.pulse.name,
                account=each.pulse.account,
                state=each.pulse.state,
                reason=each.pulse.reason,
                since=each.pulse.since,
            )
            for each in self._open.values()
        )

    def _without_routes(
        self, gone: AbstractSet[Identity], changed: dict[Identity, _Open]
    ) -> tuple[AbstractSet[Identity], dict[Identity, _Open]]:
        """Leave out the channels that live on HTTP: the routes of a running server are fixed."""
        fixed = {identity for identity in gone if isinstance(self._open[identity].channel, HasRoutes)}
        fixed |= {identity for identity, fresh in changed.items() if isinstance(fresh.channel, HasRoutes)}
        for name, account in sorted(fixed):
            log.warning("restart_needed", keys=[f"channels.{name}"], account=account)
        return gone - fixed, {identity: fresh for identity, fresh in changed.items() if identity not in fixed}

    def _make(self, identity: Identity, settings: ChannelSettings) -> _Open:
        name, account = identity
        pulse = ChannelPulse(name, account)
        context = ChannelContext(name=name, account=account, settings=settings, browser=self._browser, pulse=pulse)
        return _Open(settings=settings, channel=find_channel(name)(context), pulse=pulse)

    def _start(self, each: _Open) -> None:
        if self._tasks is not None and self._deliver is not None:
            name = f"channel:{each.channel.name}:{each.channel.account}"
            each.task = self._tasks.create_task(supervise(each.channel, self._deliver, each.pulse), name=name)

    def _close(self, identity: Identity) -> None:
        self._by_identity.pop(identity, None)
        closing = self._open.pop(identity, None)
        if closing is not None and closing.task is not None:
            closing.task.cancel()


def _wanted(settings: Settings) -> dict[Identity, ChannelSettings]:
    return {
        (name, account): options
        for name, channel in settings.channels.items()
        if channel.enabled
        for account in channel.account_names()
        if (options := channel.for_account(account)).enabled
    }

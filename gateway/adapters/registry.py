"""The channel registry: finds, opens, starts, reloads and closes the channels that the settings enable."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints, PackageNotFoundError, distribution, entry_points
from types import MappingProxyType

import structlog
from msgspec import Struct

from config import ChannelSettings, Settings
from config.reload import is_opened_alike
from gateway.adapters.services import InMemoryStore
from gateway.adapters.supervisor import ChannelPulse, supervise
from gateway.contract import (
    Browser,
    Channel,
    ChannelContext,
    Deliver,
    HasRoutes,
    Lead,
    Notebook,
    OpenChannel,
    Post,
    Relocate,
    Route,
    TakesSettings,
)
from gateway.distribution import NAME as DISTRIBUTION
from gateway.errors import CannotStart, GatehouseError
from gateway.http.routes import ChannelHealth

log = structlog.get_logger()

ENTRY_POINT_GROUP = "gatehouse.channels"


def find_channel(name: str) -> OpenChannel:
    """Import the channel called `name`. Raises `CannotStart`, which says how to fix it, if that is impossible."""
    found = {point.name: point for point in _built_in_channels()}
    if name not in found:
        # This reads the metadata of every installed package, which takes longer.
        found |= {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        raise CannotStart(
            f"channels.{name} is enabled, but no channel of that name is installed. "
            f"Installed channels: {', '.join(sorted(found))}. "
            f"Install the package that contains it, or set channels.{name}.enabled to false.",
        )
    point = found[name]
    try:
        opener: OpenChannel = point.load()
    except ModuleNotFoundError as missing:
        raise CannotStart(
            f"channels.{name} is enabled, but it needs the module `{missing.name}`, which is not installed. "
            f"Install the package that contains it, or reinstall the channel's package `{_distribution(point)}`, "
            f"or set channels.{name}.enabled to false.",
        ) from missing
    except (Exception, SystemExit) as error:  # A third party's module may do anything when it is imported.
        raise _broken(point, f"importing it raises {type(error).__name__}: {error}") from error
    if not callable(opener):
        raise _broken(point, f"`{point.value}` is not callable")
    return opener


def _built_in_channels() -> EntryPoints:
    """Return the entry points of our own package. There are none where the code runs without being installed."""
    try:
        return distribution(DISTRIBUTION).entry_points.select(group=ENTRY_POINT_GROUP)
    except PackageNotFoundError:
        return EntryPoints()


def _broken(point: EntryPoint, fault: str) -> CannotStart:
    return CannotStart(
        f"channels.{point.name} is enabled, but its package `{_distribution(point)}` is broken: {fault}. "
        f"Install another version of the package, or set channels.{point.name}.enabled to false.",
    )


def _distribution(point: EntryPoint) -> str:
    """Return the name of the distribution, as pip knows it."""
    return point.dist.name if point.dist else point.module.partition(".")[0]


CLOSE_TIMEOUT = 10.0
"""Seconds that a channel gets to end after it was cancelled. Then we go on without it."""

Identity = tuple[str, str]
"""Channel name and account name: one bot identity."""


class _Entry(Struct, kw_only=True):
    settings: ChannelSettings
    channel: Channel
    pulse: ChannelPulse
    task: asyncio.Task[None] | None = None


class ChannelChanges(Struct, frozen=True, kw_only=True):
    """What a reload does to the channels. Nothing has happened yet."""

    fresh: Mapping[Identity, _Entry]
    """Channels that were opened for it, some in place of older ones."""
    gone: frozenset[Identity]
    kept: Mapping[Identity, ChannelSettings]
    """The settings of the channels that stay open."""
    fixed: frozenset[str]
    """Channels that need a restart: they have HTTP routes, which cannot change while the server runs."""


class ChannelRegistry:
    """The open channels, by identity.

    Open them first, so that their routes can be served; then `start` them. A channel that a reload opens starts at
    once.
    """

    def __init__(
        self,
        browser: Browser,
        relocate: Relocate | None = None,
        notebooks: Callable[[str, str], Notebook] = InMemoryStore,
        post: Post | None = None,
        *,
        leads: Callable[[str, str], Lead] | None = None,
        max_poll_seconds: float | None = None,
    ) -> None:
        """`leads` returns the `Lead` of a channel and account; it and `max_poll_seconds` are for nodes of a cluster."""
        self._browser = browser
        self._post = post
        self._leads = leads
        self._max_poll_seconds = max_poll_seconds
        self._notebooks = notebooks
        self._relocate = relocate
        self._open: dict[Identity, _Entry] = {}
        self._by_identity: dict[Identity, Channel] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._deliver: Deliver | None = None

    @property
    def by_identity(self) -> Mapping[Identity, Channel]:
        """A read-only view that follows later changes."""
        return MappingProxyType(self._by_identity)

    def open(self, settings: Settings) -> None:
        """Open the channels that `settings` enable."""
        for identity, options in _enabled_accounts(settings).items():
            self._add(identity, self._make(identity, options))

    def host(self, channel: Channel) -> None:
        """Deliver to a channel of the core. No settings enable it, and it reads no platform."""
        self._by_identity[channel.name, channel.account] = channel

    def prepare(self, settings: Settings) -> ChannelChanges:
        """Return the changes that make the channels match `settings`. Raises if a channel cannot be opened."""
        enabled = _enabled_accounts(settings)
        gone = self._open.keys() - enabled.keys()
        fresh = {
            identity: self._make(identity, options)
            for identity, options in enabled.items()
            if identity not in self._open or self._open[identity].settings != options
        }
        with_routes = {identity for identity, entry in fresh.items() if isinstance(entry.channel, HasRoutes)}
        with_routes |= {identity for identity, entry in self._open.items() if isinstance(entry.channel, HasRoutes)}
        # The core applies its own rules, such as `allow`, to every channel at once.
        fixed = with_routes & gone | {
            identity
            for identity in with_routes & fresh.keys()
            if identity not in self._open or not is_opened_alike(self._open[identity].settings, enabled[identity])
        }
        return ChannelChanges(
            fresh={identity: entry for identity, entry in fresh.items() if identity not in with_routes},
            gone=frozenset(gone - with_routes),
            kept={
                (name, account): settings.channels.get(name, ChannelSettings()).for_account(account)
                for name, account in with_routes & self._open.keys()
            },
            fixed=frozenset(name for name, _ in fixed),
        )

    async def apply(self, changes: ChannelChanges) -> None:
        """Open, close and replace channels."""
        # Close the old channel before its successor starts: both at once would read the same bot's messages.
        await self._close([*changes.fresh, *changes.gone])
        for identity, entry in changes.fresh.items():
            self._add(identity, entry)
        for identity, settings in changes.kept.items():
            channel = self._open[identity].channel
            if isinstance(channel, TakesSettings):
                channel.take_settings(settings)

    def start(self, tasks: asyncio.TaskGroup, deliver: Deliver) -> None:
        """Run each channel under supervision, in a task of `tasks`."""
        self._tasks, self._deliver = tasks, deliver
        for entry in self._open.values():
            self._start(entry)

    async def stop(self) -> None:
        """Close every channel."""
        self._tasks = None
        await self._close(list(self._open))

    def routes(self) -> list[Route]:
        return [
            route
            for entry in self._open.values()
            if isinstance(entry.channel, HasRoutes)
            for route in entry.channel.routes()
        ]

    def health(self) -> tuple[ChannelHealth, ...]:
        return tuple(
            ChannelHealth(
                name=entry.pulse.name,
                account=entry.pulse.account,
                state=entry.pulse.state,
                reason=entry.pulse.reason,
                since=entry.pulse.since,
                last_error=entry.pulse.last_error,
                last_error_at=entry.pulse.last_error_at,
            )
            for entry in self._open.values()
        )

    def _make(self, identity: Identity, settings: ChannelSettings) -> _Entry:
        name, account = identity
        pulse = ChannelPulse(name, account)
        context = ChannelContext(
            name=name,
            account=account,
            settings=settings,
            browser=self._browser,
            notebook=self._notebooks(name, account),
            pulse=pulse,
        )
        if self._relocate is not None:
            context = replace(context, relocate=self._relocate)
        if self._post is not None:
            context = replace(context, post=self._post)
        if self._leads is not None:
            context = replace(context, lead=self._leads(name, account), max_poll_seconds=self._max_poll_seconds)
        opener = find_channel(name)
        try:
            channel = opener(context)
        except GatehouseError:
            raise
        except Exception as bug:  # This may be a third party's code, so name the channel.
            log.exception("channel_not_opened", channel=name, account=account)
            raise CannotStart(
                f"Can't open channels.{name}: it failed with {type(bug).__name__}. "
                f"Repair its package, or set channels.{name}.enabled to false."
            ) from bug
        return _Entry(settings=settings, channel=channel, pulse=pulse)

    def _add(self, identity: Identity, entry: _Entry) -> None:
        self._open[identity] = entry
        self._by_identity[identity] = entry.channel
        self._start(entry)

    def _start(self, entry: _Entry) -> None:
        if self._tasks is not None and self._deliver is not None:
            name = f"channel:{entry.channel.name}:{entry.channel.account}"
            entry.task = self._tasks.create_task(supervise(entry.channel, self._deliver, entry.pulse), name=name)

    async def _close(self, identities: Sequence[Identity]) -> None:
        closing = [self._open.pop(identity) for identity in identities if identity in self._open]
        tasks = {entry.task for entry in closing if entry.task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT)
        for entry in closing:
            self._by_identity.pop((entry.channel.name, entry.channel.account), None)


def _enabled_accounts(settings: Settings) -> dict[Identity, ChannelSettings]:
    return {
        (name, account): options
        for name, channel in settings.channels.items()
        if channel.enabled
        for account in channel.account_names()
        if (options := channel.for_account(account)).enabled
    }

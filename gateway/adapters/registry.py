"""The channels that are open now: opened by their settings, kept running, and changed when the settings change."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

import structlog

from config import ChannelSettings, Settings
from gateway.adapters.services import InMemoryStore
from gateway.adapters.supervisor import ChannelPulse, supervise
from gateway.contract import (
    Browser,
    Channel,
    ChannelContext,
    Deliver,
    HasRoutes,
    Notebook,
    OpenChannel,
    Relocate,
    Route,
)
from gateway.errors import CannotStart, GatehouseError
from gateway.http.routes import ChannelHealth

log = structlog.get_logger()

ENTRY_POINT_GROUP = "gatehouse.channels"


def find_channel(name: str) -> OpenChannel:
    """Import the channel called `name`; `CannotStart` says what is missing and how to get it."""
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        raise CannotStart(
            f"channels.{name} is enabled, but no channel of that name is installed. "
            f"Installed are: {', '.join(sorted(found))}. "
            f"Install the package that brings it, or set channels.{name}.enabled to false.",
        )
    return _load(found[name])


def _load(point: EntryPoint) -> OpenChannel:
    try:
        opener: OpenChannel = point.load()
    except ModuleNotFoundError as missing:
        raise CannotStart(
            f"channels.{point.name} is enabled, but it needs the module `{missing.name}`, which is not installed. "
            f"Install the package that has it, or install `{_owner(point)}`, which brings the channel, again; "
            f"or set channels.{point.name}.enabled to false.",
        ) from missing
    except (Exception, SystemExit) as broken:  # What a stranger's module does on import is not ours to foresee.
        raise _broken(point, f"importing it gives {type(broken).__name__}: {broken}") from broken
    if not callable(opener):
        raise _broken(point, f"`{point.value}` cannot be called")
    return opener


def _broken(point: EntryPoint, fault: str) -> CannotStart:
    return CannotStart(
        f"channels.{point.name} is enabled, but the package `{_owner(point)}`, which brings it, is broken: {fault}. "
        f"Install another version of it, or set channels.{point.name}.enabled to false.",
    )


def _owner(point: EntryPoint) -> str:
    """Return the name of the distribution, as pip knows it."""
    return point.dist.name if point.dist else point.module.partition(".")[0]


CLOSE_DEADLINE = 10.0
"""How long a channel may take to end; one that takes longer is left to itself."""

Identity = tuple[str, str]
"""Channel and account: one bot identity."""


@dataclass(slots=True, kw_only=True)
class _Open:
    settings: ChannelSettings
    channel: Channel
    pulse: ChannelPulse
    task: asyncio.Task[None] | None = None


class ChannelRegistry:
    def __init__(
        self,
        browser: Browser,
        relocate: Relocate | None = None,
        notebooks: Callable[[str, str], Notebook] = InMemoryStore,
    ) -> None:
        self._browser = browser
        self._notebooks = notebooks
        self._relocate = relocate
        self._open: dict[Identity, _Open] = {}
        self._by_identity: dict[Identity, Channel] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._deliver: Deliver | None = None

    @property
    def by_identity(self) -> Mapping[Identity, Channel]:
        """A view that stays current."""
        return MappingProxyType(self._by_identity)

    def open(self, settings: Settings) -> None:
        """Open what `settings` enable; raises with nothing changed."""
        for identity, options in _wanted(settings).items():
            self._add(identity, self._make(identity, options))

    async def reload(self, settings: Settings) -> None:
        """Open what `settings` newly enable, close what they no longer do; raises with nothing changed.

        A channel that has changed is closed before its successor starts: two of them at once would be two bots.
        """
        wanted = _wanted(settings)
        changed = {
            identity: self._make(identity, options)
            for identity, options in wanted.items()
            if identity not in self._open or self._open[identity].settings != options
        }
        gone, changed = self._without_routes(self._open.keys() - wanted.keys(), changed)
        await self._close([*changed, *gone])
        for identity, fresh in changed.items():
            self._add(identity, fresh)

    def start(self, tasks: asyncio.TaskGroup, deliver: Deliver) -> None:
        """Let the channels read, each under supervision, in tasks of `tasks`."""
        self._tasks, self._deliver = tasks, deliver
        for each in self._open.values():
            self._start(each)

    async def stop(self) -> None:
        """Close every channel."""
        self._tasks = None
        await self._close(list(self._open))

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
                last_error=each.pulse.last_error,
                last_error_at=each.pulse.last_error_at,
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
        opener = find_channel(name)
        try:
            channel = opener(context)
        except GatehouseError:
            raise
        except Exception as bug:  # A third party's code: its bug is a sentence about that channel, not ours.
            log.exception("channel_not_opened", channel=name, account=account)
            raise CannotStart(
                f"channels.{name} cannot be opened: it failed with {type(bug).__name__}. "
                f"Repair its package, or set channels.{name}.enabled to false."
            ) from bug
        return _Open(settings=settings, channel=channel, pulse=pulse)

    def _add(self, identity: Identity, fresh: _Open) -> None:
        self._open[identity] = fresh
        self._by_identity[identity] = fresh.channel
        self._start(fresh)

    def _start(self, each: _Open) -> None:
        if self._tasks is not None and self._deliver is not None:
            name = f"channel:{each.channel.name}:{each.channel.account}"
            each.task = self._tasks.create_task(supervise(each.channel, self._deliver, each.pulse), name=name)

    async def _close(self, identities: Sequence[Identity]) -> None:
        closing = [self._open.pop(identity) for identity in identities if identity in self._open]
        tasks = {each.task for each in closing if each.task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_DEADLINE)
        for each in closing:
            self._by_identity.pop((each.channel.name, each.channel.account), None)


def _wanted(settings: Settings) -> dict[Identity, ChannelSettings]:
    return {
        (name, account): options
        for name, channel in settings.channels.items()
        if channel.enabled
        for account in channel.account_names()
        if (options := channel.for_account(account)).enabled
    }

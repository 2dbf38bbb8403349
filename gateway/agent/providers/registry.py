"""The providers that the settings name: each is opened once, however many agents use it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib import import_module
from typing import cast

import structlog

from config import ProviderSettings
from gateway.agent.models import describe
from gateway.agent.protocol import Closable, Provider
from gateway.agent.providers.fallback import Candidate, ResilientProvider
from gateway.agent.providers.retry import Retrying

__all__ = ["ProviderRegistry", "open_provider"]

log = structlog.get_logger()

_KINDS = {
    "offline": "gateway.agent.providers.offline:open_offline",
    "openai": "gateway.agent.providers.openai:open_openai",
    "anthropic": "gateway.agent.providers.anthropic:open_anthropic",
}
"""Import paths, so that an adapter costs something only where it is used."""


def open_provider(settings: ProviderSettings, *, name: str = "<id>") -> Provider:
    """Open the provider that `providers.<name>` describes. It does no I/O, and loads no SDK, until it is used."""
    module, _, function = _KINDS[settings.kind.value].partition(":")
    opened = cast("Callable[[ProviderSettings, str], Provider]", getattr(import_module(module), function))
    return opened(settings, name)


class ProviderRegistry:
    """Finds every model by its name: `provider/model`, or a model of an agent's own provider."""

    def __init__(
        self,
        settings: Mapping[str, ProviderSettings],
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._lineups: list[ResilientProvider] = []
        self._opened = {name: open_provider(each, name=name) for name, each in settings.items()}
        self._retrying = {
            name: Retrying(provider, patience=settings[name].patience, sleep=sleep)
            for name, provider in self._opened.items()
        }

    def for_agent(self, own: str, model: str | None, fallbacks: Iterable[str]) -> ResilientProvider:
        """Put an agent's models in a row: its own, which is a name at its provider, and others by their full names."""
        lineup = ResilientProvider(
            self._candidate(own, model),
            [self._candidate(*self._split(each, own)) for each in fallbacks],
            find=lambda wanted: self._candidate(*self._split(wanted, own)),
        )
        self._lineups.append(lineup)
        return lineup

    def skipped_models(self) -> list[str]:
        """Name the models that have failed lately, in whose place others are asked."""
        return sorted({name for lineup in self._lineups for name in lineup.skipped_models()})

    async def warm_up(self, names: Iterable[str]) -> None:
        """Do beforehand what takes long the first time."""
        for name in names:
            if isinstance(provider := self._opened[name], Closable):
                try:
                    await provider.warm_up()
                except Exception:  # It will fail the turns that want it; the daemon and the other agents go on.
                    log.exception("provider_broken", provider=name)

    async def aclose(self) -> None:
        """Close all connections, each as soon as no step runs on it."""
        for provider in self._opened.values():
            if isinstance(provider, Closable):
                await provider.aclose()

    def _candidate(self, provider: str, model: str | None) -> Candidate:
        info = describe(provider, self._settings[provider], model)
        return Candidate(info=info, provider=self._retrying[provider], model=model)

    def _split(self, model: str | None, own: str) -> tuple[str, str | None]:
        provider, _, rest = (model or "").partition("/")
        return (provider, rest) if rest and provider in self._settings else (own, model)

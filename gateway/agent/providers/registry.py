"""Opens the configured model providers, each one once, and finds models by name."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import cast

import structlog

from config import ProviderSettings
from gateway.agent.models import describe
from gateway.agent.protocol import Closable, Provider
from gateway.agent.providers.retry_and_fallback import Candidate, ResilientProvider

log = structlog.get_logger()

_OPENERS = {
    "offline": "gateway.agent.providers.offline:open_offline",
    "openai": "gateway.agent.providers.openai:open_openai",
    "anthropic": "gateway.agent.providers.anthropic:open_anthropic",
}
"""Import paths by kind, so that only the kinds in use are imported."""
_MODELS_CACHED = 64


def open_provider(settings: ProviderSettings, *, name: str = "<id>") -> Provider:
    """Open the provider `providers.<name>`. It does no I/O before its first request."""
    module, _, function = _OPENERS[settings.kind.value].partition(":")
    opener = cast("Callable[[ProviderSettings, str], Provider]", getattr(import_module(module), function))
    return opener(settings, name)


class ProviderRegistry:
    """All providers of the settings. A model is named `provider/model`, or by its name at the agent's own provider."""

    def __init__(
        self,
        settings: Mapping[str, ProviderSettings],
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._sleep = sleep
        self._retry_times: dict[str, float] = {}
        self._agents: list[ResilientProvider] = []
        self._opened = {name: open_provider(each, name=name) for name, each in settings.items()}

    def for_agent(self, own: str, model: str | None, fallbacks: Iterable[str]) -> ResilientProvider:
        """Return an agent's provider. `model` is a name at the provider `own`; `fallbacks` are full names."""

        @lru_cache(maxsize=_MODELS_CACHED)  # Each charge looks up its model. People may choose any name.
        def candidate(provider: str, model: str | None) -> Candidate:
            settings = self._settings[provider]
            info = describe(provider, settings, model)
            return Candidate(info=info, provider=self._opened[provider], model=model, patience=settings.patience)

        def find(name: str) -> Candidate:
            provider, _, rest = name.partition("/")
            # At some endpoints a model's own name has a slash (`openai/gpt-5` at OpenRouter).
            is_full_name = rest and provider in self._settings
            return candidate(provider, rest) if is_full_name else candidate(own, name)

        resilient = ResilientProvider(
            candidate(own, model),
            [find(each) for each in fallbacks],
            find=find,
            retry_times=self._retry_times,
            sleep=self._sleep,
        )
        self._agents.append(resilient)
        return resilient

    def skipped_models(self) -> list[str]:
        """Return the models that failed recently, so that others are asked first."""
        return sorted({name for each in self._agents for name in each.skipped_models()})

    async def warm_up(self, names: Iterable[str]) -> None:
        """Prepare these providers, so that their first requests do not wait for that."""
        for name in names:
            if isinstance(provider := self._opened[name], Closable):
                try:
                    await provider.warm_up()
                except Exception:  # The turns that need this provider will fail; the daemon and other agents go on.
                    log.exception("provider_unusable", provider=name)

    async def aclose(self) -> None:
        """Close all connections, each as soon as no step uses it."""
        for provider in self._opened.values():
            if isinstance(provider, Closable):
                await provider.aclose()

"""What is set up already: doing it again changes what is asked for, and keeps the rest."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from config import Settings, load
from config.loader import read_tables

__all__ = ["Standing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    settings: Settings
    tables: dict[str, Any]
    """The file itself, in which references to secrets are still references."""

    @classmethod
    def at(cls, path: Path) -> Self:
        if not path.exists():
            return cls(settings=load(None, resolves=False).settings, tables={})
        return cls(settings=load(path, resolves=False).settings, tables=read_tables(path))

    @property
    def provider(self) -> str:
        """Name the provider that the agent `main` asks."""
        return self.settings.agents["main"].provider

    def model(self, provider: str) -> str:
        """Return the model that is asked at `provider`; that of another provider means nothing there."""
        return self.settings.agents["main"].model or "" if provider == self.provider else ""

    def base_url(self, provider: str) -> str | None:
        """Return the endpoint of `provider` if it is asked at present; what an earlier time has left does not count."""
        return self.settings.providers[provider].base_url if provider == self.provider else None

    def key(self, provider: str, base_url: str | None) -> str | None:
        """Return the key of `provider` as the file has it, for `base_url` alone: it is nobody else's to see."""
        known = self.settings.providers.get(provider)
        if known is None or known.base_url != base_url:
            return None
        key = self.tables.get("providers", {}).get(provider, {}).get("api_key")
        return str(key) if key else None

    def has_token(self, channel: str) -> bool:
        return "token" in self.tables.get("channels", {}).get(channel, {})

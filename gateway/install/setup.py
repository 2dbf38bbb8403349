"""The result of `gatehouse setup`: configuration keys and secret files for the chosen model, bots and service."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp

from config import ProviderKind, ProviderSettings, Secret, Settings, load, set_values
from config.files import make_private_directory, write_atomically
from config.loader import read_tables
from gateway.install.units import ServicePaths

_OLLAMA = "127.0.0.1:11434"
_OLLAMA_TIMEOUT = 2.0
_LISTEN_TO_CONNECT = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - where a server on these can be reached.
_CREDENTIALS_HEAD = "# Written by `gatehouse setup`: secrets that systemd passes to the service only.\n[Service]\n"
_LOAD_CREDENTIAL = "LoadCredential="


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A provider that setup offers. `model` is the suggested model."""

    kind: ProviderKind
    model: str = ""
    base_url: str | None = None
    needs_key: bool = True


PRESETS = {
    "openai": Preset(kind=ProviderKind.OPENAI, model="gpt-5.4"),
    "anthropic": Preset(kind=ProviderKind.ANTHROPIC, model="claude-sonnet-5-5"),
    "openrouter": Preset(
        kind=ProviderKind.OPENAI, model="anthropic/claude-sonnet-4.5", base_url="https://openrouter.ai/api/v1"
    ),
    "ollama": Preset(kind=ProviderKind.OPENAI, needs_key=False),
    "custom": Preset(kind=ProviderKind.OPENAI, needs_key=False),
    "offline": Preset(kind=ProviderKind.OFFLINE, needs_key=False),
}


def ollama_url(environ: Mapping[str, str]) -> str:
    """Return the URL of Ollama: $OLLAMA_HOST, in any form that Ollama itself accepts, or its default address."""
    host_variable = environ.get("OLLAMA_HOST", "").strip(" \"'")
    has_scheme = "://" in host_variable
    parts = urlsplit(host_variable if has_scheme else f"http://{host_variable or _OLLAMA}")
    try:
        port = parts.port or (None if has_scheme else urlsplit(f"//{_OLLAMA}").port)
    except ValueError:
        return f"http://{_OLLAMA}"
    host = parts.hostname or "127.0.0.1"
    # A server can listen on 0.0.0.0, but clients cannot portably connect to it.
    host = _LISTEN_TO_CONNECT.get(host, f"[{host}]" if ":" in host else host)
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}"


def default_base_url(provider: str, environ: Mapping[str, str]) -> str | None:
    """Return the endpoint of a preset; None for the default of its kind."""
    return f"{ollama_url(environ)}/v1" if provider == "ollama" else PRESETS[provider].base_url


async def default_model(provider: str, base_url: str | None) -> str:
    """Return the model to suggest. For Ollama, that is the first model it has."""
    if provider != "ollama" or base_url is None:
        return PRESETS[provider].model
    return next(iter(await list_ollama_models(base_url.removesuffix("/v1"))), "")


async def list_ollama_models(url: str) -> list[str]:
    """Return the names of the models that the Ollama at `url` has; an empty list if no Ollama answers."""
    timeout = aiohttp.ClientTimeout(total=_OLLAMA_TIMEOUT)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url}/api/tags") as answer:
            listed = await answer.json(content_type=None)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return []
    models = listed.get("models") if isinstance(listed, dict) else None
    return [str(each["name"]) for each in models or [] if isinstance(each, dict) and "name" in each]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentSetup:
    """The configuration before setup changes it, so that settings which are not chosen again are kept."""

    settings: Settings
    tables: dict[str, Any]
    """The raw file, with references to secrets instead of the secrets."""

    @classmethod
    def read(cls, path: Path) -> Self:
        if not path.exists():
            return cls(settings=load(None, resolves=False).settings, tables={})
        return cls(settings=load(path, resolves=False).settings, tables=read_tables(path))

    @property
    def provider(self) -> str:
        """The provider of the agent `main`."""
        return self.settings.agents["main"].provider

    def model(self, provider: str) -> str:
        """Return the current model if `provider` is in use; models of another provider do not exist there."""
        return self.settings.agents["main"].model or "" if provider == self.provider else ""

    def base_url(self, provider: str) -> str | None:
        """Return the endpoint of `provider` if it is in use; settings left by an earlier setup do not count."""
        return self.settings.providers[provider].base_url if provider == self.provider else None

    def key(self, provider: str, base_url: str | None) -> str | None:
        """Return the API key as written in the file, but only for the same `base_url`: no other server may get it."""
        known = self.settings.providers.get(provider)
        if known is None or known.base_url != base_url:
            return None
        key = self.tables.get("providers", {}).get(provider, {}).get("api_key")
        return str(key) if key else None

    def has_token(self, channel: str) -> bool:
        return "token" in self.tables.get("channels", {}).get(channel, {})


@dataclass(slots=True, kw_only=True)
class SetupPlan:
    """`values` are configuration keys; a key whose value is None will be removed.

    `secrets` are the contents of private files next to the configuration, by file name.
    """

    values: dict[str, object] = field(default_factory=dict)
    secrets: dict[str, Secret] = field(default_factory=dict)

    def add_model(self, name: str, provider: ProviderSettings, model: str, reference: str | None) -> None:
        """Make `model` the model of the agent `main`. With a `reference`, the API key is stored elsewhere."""
        self.values |= {
            "agents.main.provider": name,
            "agents.main.model": model or None,
            f"providers.{name}.kind": provider.kind.value,
            f"providers.{name}.base_url": provider.base_url,
            f"providers.{name}.api_key": reference,
        }
        if provider.api_key is not None and not reference:
            self.values[f"providers.{name}.api_key"] = f"file:{name}.key"
            self.secrets[f"{name}.key"] = provider.api_key

    def add_token(self, channel: str, token: Secret, reference: str | None) -> None:
        """Enable a channel. With a `reference`, its token is stored elsewhere."""
        self.values[f"channels.{channel}.enabled"] = True
        self.values[f"channels.{channel}.token"] = reference or f"file:{channel}.token"
        if not reference:
            self.secrets[f"{channel}.token"] = token

    def write(self, path: Path, environ: Mapping[str, str]) -> None:
        """Write the secrets, then the configuration that refers to them. A `ConfigError` leaves the configuration."""
        folder = path.absolute().parent
        make_private_directory(folder)
        for name, secret in self.secrets.items():
            write_atomically(folder / name, f"{secret.reveal()}\n".encode())
        set_values(path, self.values, environ)

    def with_credentials(self) -> "SetupPlan":
        """Return this plan for the system service. It cannot read root's files, so systemd passes it the secrets."""
        references = {f"file:{name}": f"credential:{name}" for name in self.secrets}
        values = {
            key: references.get(value, value) if isinstance(value, str) else value for key, value in self.values.items()
        }
        return replace(self, values=values)


def service_environment(paths: ServicePaths, environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which the service's credentials are the files next to its configuration."""
    return {**environ, "CREDENTIALS_DIRECTORY": str(paths.config.parent)}


def credentials_drop_in(paths: ServicePaths, names: Iterable[str]) -> str:
    """Return a drop-in that makes systemd load these secrets, and those that the present drop-in loads."""
    lines = {f"{_LOAD_CREDENTIAL}{name}:{paths.config.parent / name}" for name in names}
    if paths.credentials.exists():
        present = paths.credentials.read_text(encoding="utf-8").splitlines()
        lines |= {line.strip() for line in present if line.startswith(_LOAD_CREDENTIAL)}
    return _CREDENTIALS_HEAD + "".join(f"{line}\n" for line in sorted(lines))

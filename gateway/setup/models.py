"""Where models can be had, and whether one is served on this machine already."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from config import ProviderKind

__all__ = ["PRESETS", "Preset", "local_models", "ollama_at", "usual_model", "usual_place"]

_OLLAMA = "127.0.0.1:11434"
_PATIENCE = 2.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - what it listens on is not what it is called.


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """`model` is a name to start with; people can choose another."""

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


def ollama_at(environ: Mapping[str, str]) -> str:
    """Return where Ollama listens: $OLLAMA_HOST, in any of the forms that Ollama itself takes, or its usual place."""
    told = environ.get("OLLAMA_HOST", "").strip(" \"'")
    parts = urlsplit(told if "://" in told else f"http://{told or _OLLAMA}")
    try:
        port = parts.port or (urlsplit(f"//{_OLLAMA}").port if "://" not in told else None)
    except ValueError:
        return f"http://{_OLLAMA}"
    host = parts.hostname or "127.0.0.1"
    shown = _EVERYWHERE.get(host, f"[{host}]" if ":" in host else host)
    return f"{parts.scheme}://{shown}{f':{port}' if port else ''}"


def usual_place(provider: str, environ: Mapping[str, str]) -> str | None:
    """Return the endpoint of `provider` unless another is given; None for that of its kind."""
    return f"{ollama_at(environ)}/v1" if provider == "ollama" else PRESETS[provider].base_url


async def usual_model(provider: str, base_url: str | None) -> str:
    """Return a model to start with: for Ollama, the first that it has."""
    if provider != "ollama" or base_url is None:
        return PRESETS[provider].model
    return next(iter(await local_models(base_url.removesuffix("/v1"))), "")


async def local_models(base: str) -> list[str]:
    """Name the models that the Ollama at `base` has; none where there is no Ollama."""
    timeout = aiohttp.ClientTimeout(total=_PATIENCE)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{base}/api/tags") as answer:
            listed = await answer.json(content_type=None)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return []
    models = listed.get("models") if isinstance(listed, dict) else None
    return [str(each["name"]) for each in models or [] if isinstance(each, dict) and "name" in each]

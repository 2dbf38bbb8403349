"""Where models can be had, and whether one is served on this machine already."""

from dataclasses import dataclass

import aiohttp

from config import ProviderKind

__all__ = ["OLLAMA", "PRESETS", "Preset", "local_models"]

OLLAMA = "http://127.0.0.1:11434"
"""Where Ollama listens unless $OLLAMA_HOST says otherwise."""
_PATIENCE = 2.0


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
    "ollama": Preset(kind=ProviderKind.OPENAI, base_url=f"{OLLAMA}/v1", needs_key=False),
    "custom": Preset(kind=ProviderKind.OPENAI, needs_key=False),
    "offline": Preset(kind=ProviderKind.OFFLINE, needs_key=False),
}


async def local_models(base: str = OLLAMA) -> list[str]:
    """Name the models that an Ollama of this machine has; none where there is no Ollama."""
    timeout = aiohttp.ClientTimeout(total=_PATIENCE)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{base}/api/tags") as answer:
            listed = await answer.json(content_type=None)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return []
    models = listed.get("models") if isinstance(listed, dict) else None
    return [str(each["name"]) for each in models or [] if isinstance(each, dict) and "name" in each]

"""What tables say of each other that is not so."""

from collections.abc import Iterator, Mapping
from typing import Any

from config.choices import Backend, ProviderKind
from config.problems import Problem, did_you_mean
from config.tables.agents import MAKERS

__all__ = ["misfits"]


def misfits(tables: Mapping[str, Any]) -> Iterator[Problem]:
    """Find what tables say of each other that is not so, in tables that may be wrong in any other way."""
    for name, agent in _items(tables.get("agents")):
        yield from _unknown(f"agents.{name}.provider", agent, "provider", tables.get("providers"))
        yield from _missing_model(f"agents.{name}.model", agent, tables.get("providers"))
        yield from _unknown_fallbacks(f"agents.{name}.fallbacks", agent, tables.get("providers"))
    yield from _unknown("transcription.provider", tables.get("transcription"), "provider", tables.get("providers"))
    yield from _deaf_provider(tables.get("transcription"), tables.get("providers"))
    yield from _ambiguous_servers(tables.get("mcp"))
    bindings = tables.get("bindings")
    for number, binding in enumerate(bindings if isinstance(bindings, list | tuple) else ()):
        yield from _unknown(f"bindings[{number}].agent", binding, "agent", tables.get("agents"))


def _items(table: object) -> list[tuple[str, object]]:
    return list(table.items()) if isinstance(table, dict) else []


def _unknown(key: str, table: object, field: str, known: object) -> Iterator[Problem]:
    name = table.get(field) if isinstance(table, dict) else None
    if isinstance(name, str) and isinstance(known, dict) and name not in known:
        near = did_you_mean(name, known)
        hint = near or f"add a table [{field}s.<name>] for it, or use one of: {', '.join(sorted(known))}"
        # A name that is like no other may be a secret in the wrong place.
        yield Problem(
            key=key, message=f"there is no {field} `{name}`" if near else f"there is no such {field}", hint=hint
        )


def _deaf_provider(transcription: object, providers: object) -> Iterator[Problem]:
    name = transcription.get("provider") if isinstance(transcription, dict) else None
    provider = providers.get(name) if isinstance(providers, dict) and isinstance(name, str) else None
    if isinstance(provider, dict) and str(provider.get("kind")) != ProviderKind.OPENAI:
        yield Problem(
            key="transcription.provider",
            message="names a provider that makes no text of recordings",
            hint='use one of kind "openai", which any compatible endpoint is by its base_url',
        )


def _ambiguous_servers(servers: object) -> Iterator[Problem]:
    """Find servers whose tools could be taken for another's: `a__b__c` is the tool `b__c` of the server `a`."""
    for name, _ in _items(servers):
        if "__" in name or name.endswith("_"):
            yield Problem(
                key=f"mcp.{name}",
                message="has a name that cannot be told from its tools' names",
                hint="two `_` stand between a server and its tool: have no two together, and none at the end",
            )


def _missing_model(key: str, agent: object, providers: object) -> Iterator[Problem]:
    if not isinstance(agent, dict) or not isinstance(providers, dict) or agent.get("model") is not None:
        return
    provider = providers.get(str(agent.get("provider", "offline")))
    kind = str(provider.get("kind")) if isinstance(provider, dict) else ""
    if kind in {*MAKERS} and agent.get("backend", Backend.LLM) == Backend.LLM:
        yield Problem(
            key=key,
            message=f'is needed with a provider of kind "{kind}"',
            hint="name a model that the endpoint offers",
        )


def _unknown_fallbacks(key: str, agent: object, providers: object) -> Iterator[Problem]:
    fallbacks = agent.get("fallbacks") if isinstance(agent, dict) else None
    for number, fallback in enumerate(fallbacks if isinstance(fallbacks, list | tuple) else ()):
        where = f"{key}[{number}]"
        provider, _, model = fallback.partition("/") if isinstance(fallback, str) else ("", "", "")
        if not provider or not model:
            yield Problem(key=where, message="must be a provider and a model", hint='write it like "local/llama3.3"')
        else:
            yield from _unknown(where, {"provider": provider}, "provider", providers)

"""The settings as a whole: all tables, the built-in entries, and the checks across tables."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from config.errors import Mistake, Mistakes, Problem, did_you_mean
from config.settings.agents import MAKERS, AgentSettings, ProviderSettings, Repo
from config.settings.channels import Binding, ChannelSettings
from config.settings.daemon import GatewaySettings, HttpSettings
from config.settings.sessions import LimitSettings, SessionSettings
from config.settings.tools import FileSettings, McpSettings, ToolSettings, TranscriptionSettings
from config.types import Backend, ProviderKind, Slug, Table


class Settings(Table):
    """Everything that can be set. The defaults alone make a gateway that runs."""

    gateway: GatewaySettings = Field(default_factory=GatewaySettings, description="The daemon itself.")
    http: HttpSettings = Field(default_factory=HttpSettings, description="The HTTP server.")
    session: SessionSettings = Field(default_factory=SessionSettings, description="Conversations.")
    limits: LimitSettings = Field(default_factory=LimitSettings, description="What people may use of the models.")
    agents: dict[Slug, AgentSettings] = Field(
        default_factory=dict, description="The agents by name; `main` always exists."
    )
    providers: dict[Slug, ProviderSettings] = Field(
        default_factory=dict, description="Where models run, by name; `offline` always exists."
    )
    channels: dict[Slug, ChannelSettings] = Field(
        default_factory=dict, description="The chat platforms by name; `web` and `terminal` are on unless disabled."
    )
    bindings: tuple[Binding, ...] = Field(default=(), description="Which agent answers where, if not `main`.")
    repos: tuple[Repo, ...] = Field(default=(), description="Folders that can be chosen as a workspace.")
    tools: ToolSettings = Field(default_factory=ToolSettings, description="What tools may do.")
    mcp: dict[Slug, McpSettings] = Field(default_factory=dict, description="MCP servers by name.")
    files: FileSettings = Field(default_factory=FileSettings, description="Files that come and go with messages.")
    transcription: TranscriptionSettings = Field(
        default_factory=TranscriptionSettings, description="Text of voice messages."
    )

    BUILT_IN: ClassVar[Mapping[str, Mapping[str, Mapping[str, object]]]] = {
        "gateway": {},
        "http": {},
        "session": {},
        "limits": {},
        "files": {},
        "transcription": {},
        "agents": {"main": {}},
        "providers": {"offline": {"kind": ProviderKind.OFFLINE}},
        "channels": {"web": {}, "terminal": {}},
    }

    @model_validator(mode="before")
    @classmethod
    def _with_what_always_exists(cls, tables: object) -> object:
        return complete(tables) if isinstance(tables, dict) else tables

    @field_validator("bindings")
    @classmethod
    def _no_two_alike(cls, bindings: tuple[Binding, ...]) -> tuple[Binding, ...]:
        first: dict[tuple[str | None, ...], int] = {}
        for number, binding in enumerate(bindings):
            if first.setdefault(binding.match, number) != number:
                raise Mistake(
                    f"number {first[binding.match]} and number {number} match the same messages", "remove one of them"
                )
        return bindings

    @field_validator("repos")
    @classmethod
    def _names_once(cls, repos: tuple[Repo, ...]) -> tuple[Repo, ...]:
        for name, count in Counter(repo.name for repo in repos).items():
            if count > 1:
                raise Mistake(f"`{name}` is there {count} times", "give each repo its own name")
        return repos

    @model_validator(mode="after")
    def _our_files_stay_ours(self) -> Self:
        """Refuse a workspace in which the tools would find the token, the conversations and the notes of others."""
        data = self.gateway.data_dir.resolve()
        problems = [
            Problem(
                key=f"repos[{number}].path",
                message="holds gateway.data_dir, whose secrets the tools could read",
                hint="name a folder further down, or move gateway.data_dir",
            )
            for number, repo in enumerate(self.repos)
            if data.is_relative_to(repo.path.resolve()) or repo.path.resolve().is_relative_to(data)
        ]
        if problems:
            raise Mistakes(problems)
        return self

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        if problems := list(misfits(self.model_dump())):
            raise Mistakes(problems)
        return self


def complete(tables: dict[str, object]) -> dict[str, object]:
    """Return `tables` with what always exists added; what is no table is left for validation to report."""
    whole = dict(tables)
    for name, built_in in Settings.BUILT_IN.items():
        given = whole.setdefault(name, {})
        if isinstance(given, dict):
            whole[name] = {**built_in, **given}
    return whole


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

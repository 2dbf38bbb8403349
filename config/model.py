"""The settings as a whole: all tables, the entries that always exist, and the checks across tables."""

from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from config.errors import InvalidTables, InvalidValue, Problem, did_you_mean
from config.settings.agents import VENDORS, AgentSettings, ProviderSettings, Repo
from config.settings.channels import Binding, ChannelSettings
from config.settings.cluster import ClusterSettings
from config.settings.daemon import GatewaySettings, HttpSettings
from config.settings.roles import BUILT_IN_ROLES, OWNER_ROLE, RoleSettings
from config.settings.schedules import ScheduleSettings
from config.settings.sessions import ApiSettings, LimitSettings, MemorySettings, SessionSettings
from config.settings.storage import StorageSettings
from config.settings.tools import FileSettings, McpSettings, SkillSettings, ToolSettings, TranscriptionSettings
from config.settings.tracing import TracingSettings
from config.types import (
    PRIVATE_WORKSPACES,
    PROGRAM_CHANNELS,
    WEBHOOK_CHANNEL,
    Backend,
    FileSharing,
    ProviderKind,
    Slug,
    StorageEngine,
    Table,
    resolve_links,
)


class Settings(Table):
    """The whole config file. The defaults alone are enough to run. Each table's defaults are in `config.settings`."""

    gateway: GatewaySettings = Field(default_factory=GatewaySettings, description="The gateway.")
    http: HttpSettings = Field(default_factory=HttpSettings, description="The HTTP server.")
    session: SessionSettings = Field(default_factory=SessionSettings, description="Conversations.")
    memory: MemorySettings = Field(default_factory=MemorySettings, description="The memory of conversations.")
    storage: StorageSettings = Field(
        default_factory=StorageSettings, description="Where sessions and the spool are stored."
    )
    cluster: ClusterSettings = Field(
        default_factory=ClusterSettings, description="Several gateways on one PostgreSQL database."
    )
    api: ApiSettings = Field(default_factory=ApiSettings, description="The HTTP API for programs.")
    limits: LimitSettings = Field(default_factory=LimitSettings, description="Limits on the use of models.")
    agents: dict[Slug, AgentSettings] = Field(
        default_factory=dict, description="The agents by name; `main` always exists."
    )
    providers: dict[Slug, ProviderSettings] = Field(
        default_factory=dict, description="The model providers by name; `offline` always exists."
    )
    channels: dict[Slug, ChannelSettings] = Field(
        default_factory=dict, description="The chat platforms by name; `web` and `terminal` are on unless disabled."
    )
    bindings: tuple[Binding, ...] = Field(
        default=(), description="Which agent answers where. `main` answers everywhere else."
    )
    roles: dict[Slug, RoleSettings] = Field(
        default_factory=dict,
        description="What people, chats and programs may do; `owner`, `member` and `guest` always exist.",
    )
    schedules: tuple[ScheduleSettings, ...] = Field(
        default=(), description="Prompts that the gateway sends by itself, and texts that it delivers, at their times."
    )
    repos: tuple[Repo, ...] = Field(default=(), description="Folders that a session can use as its workspace.")
    tools: ToolSettings = Field(default_factory=ToolSettings, description="The built-in tools.")
    skills: SkillSettings = Field(default_factory=SkillSettings, description="Agent Skills.")
    mcp: dict[Slug, McpSettings] = Field(default_factory=dict, description="MCP servers by name.")
    files: FileSettings = Field(default_factory=FileSettings, description="Attachments of messages and answers.")
    transcription: TranscriptionSettings = Field(
        default_factory=TranscriptionSettings, description="Transcription of voice messages."
    )

    tracing: TracingSettings = Field(
        default_factory=TracingSettings, description="Traces for an OpenTelemetry collector."
    )

    # Empty tables are listed too: a default factory gets no validation context, so it would take `~` in data_dir from
    # the environment of this process and not from the given one. It would also build a validator of its own.
    BUILT_IN: ClassVar[Mapping[str, Mapping[str, Mapping[str, object]]]] = {
        "gateway": {},
        "http": {},
        "session": {},
        "memory": {},
        "storage": {},
        "cluster": {},
        "api": {},
        "limits": {},
        "tools": {"shell": {}, "fetch": {}, "search": {}, "documents": {}, "images": {}, "speech": {}},
        "skills": {},
        "files": {},
        "transcription": {},
        "tracing": {},
        "agents": {"main": {}},
        "providers": {"offline": {"kind": ProviderKind.OFFLINE}},
        "channels": {"web": {}, "terminal": {}},
        "roles": {name: {} for name in BUILT_IN_ROLES},
    }

    @model_validator(mode="before")
    @classmethod
    def _add_built_ins(cls, tables: object) -> object:
        return add_built_ins(tables) if isinstance(tables, dict) else tables

    @field_validator("bindings")
    @classmethod
    def _check_bindings_differ(cls, bindings: tuple[Binding, ...]) -> tuple[Binding, ...]:
        first: dict[tuple[str | None, ...], int] = {}
        for number, binding in enumerate(bindings):
            if first.setdefault(binding.match, number) != number:
                raise InvalidValue(
                    f"number {first[binding.match]} and number {number} match the same messages", "remove one of them"
                )
        return bindings

    @field_validator("channels")
    @classmethod
    def _check_channel_names_are_free(cls, channels: dict[str, ChannelSettings]) -> dict[str, ChannelSettings]:
        for name in PROGRAM_CHANNELS & channels.keys():
            raise InvalidValue(f"the name `{name}` belongs to the HTTP API", "see [api] for its settings")
        return channels

    @field_validator("repos")
    @classmethod
    def _check_repo_ids_differ(cls, repos: tuple[Repo, ...]) -> tuple[Repo, ...]:
        for repo_id, count in Counter(repo.id for repo in repos).items():
            if count > 1:
                raise InvalidValue(f"the id `{repo_id}` is used {count} times", "give each repo its own id")
        return repos

    @field_validator("schedules")
    @classmethod
    def _check_schedule_names_differ(cls, schedules: tuple[ScheduleSettings, ...]) -> tuple[ScheduleSettings, ...]:
        for name, count in Counter(schedule.name for schedule in schedules).items():
            if count > 1:
                raise InvalidValue(f"the name `{name}` is used {count} times", "give each schedule its own name")
        return schedules

    @model_validator(mode="after")
    def _check_folders_exclude_data_dir(self) -> Self:
        if problems := folder_problems(self):
            raise InvalidTables(problems)
        return self

    @model_validator(mode="after")
    def _check_across_tables(self) -> Self:
        if problems := list(cross_table_problems(self.model_dump())):
            raise InvalidTables(problems)
        return self


def folder_problems(settings: Settings) -> list[Problem]:
    """Return the folders in which tools and programs could read what does not belong to their session."""
    # Tools read and write these folders, and data_dir contains the token and everyone's conversations.
    data = resolve_links(settings.gateway.data_dir)
    folders = {f"repos[{number}].path": repo.path for number, repo in enumerate(settings.repos)}
    for name, agent in settings.agents.items():
        if agent.sandbox.home is not None:
            folders[f"agents.{name}.sandbox.home"] = resolve_links(agent.sandbox.home)
        for number, path in enumerate(agent.sandbox.readable):
            folders[f"agents.{name}.sandbox.readable[{number}]"] = resolve_links(path)
    skills = {f"skills.folders[{number}]": resolve_links(path) for number, path in enumerate(settings.skills.folders)}
    folders |= skills
    workspaces = resolve_links(settings.gateway.workspace_root)
    if workspaces != data / "workspace":  # The default, in which the gateway itself keeps nothing.
        folders["gateway.workspace_root"] = workspaces
    problems = [
        Problem(
            key=key,
            message="overlaps with gateway.data_dir, so tools could read its secrets",
            hint="choose a folder outside gateway.data_dir that does not contain it, or move gateway.data_dir",
        )
        for key, folder in folders.items()
        if data.is_relative_to(folder) or folder.is_relative_to(data)
    ]
    problems += [
        Problem(
            key=key,
            message="overlaps with gateway.workspace_root, so agents could change their skills",
            hint="choose a folder outside gateway.workspace_root that does not contain it",
        )
        for key, folder in skills.items()
        if not problems and (workspaces.is_relative_to(folder) or folder.is_relative_to(workspaces))
    ]
    problems += _database_problems(settings, data, {**folders, "gateway.workspace_root": workspaces})
    # A repo may be a shared workspace or lie inside one, but private ones belong to their scopes.
    return problems or [
        Problem(
            key=f"repos[{number}].path",
            message="contains private workspaces, so tools could read the files of other people",
            hint="choose a folder outside the private folders of gateway.workspace_root that does not contain it",
        )
        for number, repo in enumerate(settings.repos)
        if workspaces.is_relative_to(repo.path)
        or (repo.path.is_relative_to(workspaces) and PRIVATE_WORKSPACES in repo.path.relative_to(workspaces).parts[0])
    ]


def _database_problems(settings: Settings, data: Path, folders: Mapping[str, Path]) -> Iterator[Problem]:
    """Yield the problems with the place of a SQLite database."""
    if settings.storage.engine is not StorageEngine.SQLITE:
        return
    file = resolve_links(settings.storage.path)
    for key, folder in folders.items():
        if file.is_relative_to(folder):
            yield Problem(
                key="storage.url",
                message=f"is a file inside {key}, so tools could read everyone's conversations",
                hint="choose a file in gateway.data_dir, or in another folder that no agent can use",
            )
            return
    if (file.parent == data and file.name.startswith(_NAMES_IN_USE)) or file.is_relative_to(data / "sessions"):
        yield Problem(
            key="storage.url",
            message="is a file that the gateway uses for something else",
            hint="choose another name, like gatehouse.db",
        )


_NAMES_IN_USE = ("spool.db", "gatehouse.lock", "gatehouse.toml")
"""How the names of files in the data directory start that are no databases of the SQLite engine."""


def add_built_ins(tables: dict[str, object]) -> dict[str, object]:
    """Return `tables` with the entries that always exist. An entry that is not a table is left to validation."""
    whole = dict(tables)
    for name, built_in in Settings.BUILT_IN.items():
        given = whole.setdefault(name, {})
        if isinstance(given, dict):
            whole[name] = {**built_in, **given}
    return whole


def cross_table_problems(tables: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems between tables, such as an agent whose provider does not exist.

    `tables` may be invalid in any other way: the loader calls this for raw tables too, to report everything at once.
    """
    providers, agents = tables.get("providers"), tables.get("agents")
    repos = _repo_ids(tables.get("repos"))
    for name, agent in agents.items() if isinstance(agents, dict) else ():
        if not isinstance(agent, dict):
            continue
        key = f"agents.{name}"
        yield from _unknown(f"{key}.provider", agent.get("provider"), "provider", providers)

        provider = providers.get(str(agent.get("provider", "offline"))) if isinstance(providers, dict) else None
        kind = str(provider.get("kind")) if isinstance(provider, dict) else ""
        uses_model = agent.get("backend", Backend.LLM) == Backend.LLM
        if uses_model and agent.get("model") is None and kind in {*VENDORS}:
            message, hint = f'is required by providers of kind "{kind}"', "set it to a model that the endpoint offers"
            yield Problem(key=f"{key}.model", message=message, hint=hint)

        named_repos = agent.get("repos")
        for number, repo in enumerate(named_repos if isinstance(named_repos, list | tuple) else ()):
            yield from _unknown(f"{key}.repos[{number}]", repo, "repo", repos)

        fallbacks = agent.get("fallbacks")
        for number, fallback in enumerate(fallbacks if isinstance(fallbacks, list | tuple) else ()):
            yield from _unknown_model(f"{key}.fallbacks[{number}]", fallback, providers)

    memory = tables.get("memory")
    if isinstance(memory, dict) and memory.get("model") is not None:
        yield from _unknown_model("memory.model", memory["model"], providers)

    tools = tables.get("tools")
    media: dict[str, Any] = tools if isinstance(tools, dict) else {}  # Any: as for `tables`.
    users = {
        "transcription": (tables.get("transcription"), "cannot transcribe"),
        "tools.images": (media.get("images"), "cannot make pictures"),
        "tools.speech": (media.get("speech"), "cannot speak"),
    }
    for name, (table, lack) in users.items():
        chosen = table.get("provider") if isinstance(table, dict) else None
        yield from _unknown(f"{name}.provider", chosen, "provider", providers)
        provider = providers.get(chosen) if isinstance(providers, dict) and isinstance(chosen, str) else None
        if isinstance(provider, dict) and str(provider.get("kind")) != ProviderKind.OPENAI:
            yield Problem(
                key=f"{name}.provider",
                message=f"names a provider that {lack}",
                hint='use a provider of kind "openai"; its base_url can be any compatible endpoint',
            )

    files, storage = tables.get("files"), tables.get("storage")
    if isinstance(files, dict) and files.get("shared") == FileSharing.DATABASE:
        url = storage.get("url", "files:") if isinstance(storage, dict) else "files:"
        if isinstance(url, str) and url.partition(":")[0].lower() in {StorageEngine.FILES, StorageEngine.SQLITE}:
            yield Problem(
                key="files.shared",
                message='"database" needs PostgreSQL, and storage.url names no such database',
                hint='set storage.url to a postgresql:// URL, or files.shared to "s3"',
            )

    # Tools are called <server>__<tool>: `a__b__c` could be the tool `c` of `a__b` or `b__c` of `a`.
    servers = tables.get("mcp")
    for name in servers if isinstance(servers, dict) else ():
        if "__" in name or name.endswith("_"):
            yield Problem(
                key=f"mcp.{name}",
                message="has a name that cannot be told apart from the names of its tools",
                hint="rename it: no `__` in the name, and no `_` at the end",
            )

    yield from _webhook_problems(tables.get("channels"))
    yield from _role_problems(tables)
    yield from _cluster_problems(tables)

    yield from _schedule_problems(tables)

    bindings = tables.get("bindings")
    for number, binding in enumerate(bindings if isinstance(bindings, list | tuple) else ()):
        if isinstance(binding, dict):
            yield from _unknown(f"bindings[{number}].agent", binding.get("agent"), "agent", agents)


def _schedule_problems(tables: Mapping[str, Any]) -> Iterator[Problem]:
    schedules, channels = tables.get("schedules"), tables.get("channels")
    for number, schedule in enumerate(schedules if isinstance(schedules, list | tuple) else ()):
        if not isinstance(schedule, dict):
            continue
        key = f"schedules[{number}]"
        yield from _unknown(f"{key}.agent", schedule.get("agent"), "agent", tables.get("agents"))
        yield from _unknown(f"{key}.role", schedule.get("role"), "role", tables.get("roles"))
        chat = schedule.get("chat")
        if isinstance(chat, str) and ":" in chat:
            channel = chat.partition(":")[0]
            yield from _unknown(f"{key}.chat", channel, "channel", channels)
            if isinstance(channels, dict) and channel in channels:
                account = schedule.get("chat_account", "default")
                yield from _account_problems(f"{key}.chat_account", account, channels[channel])


def _cluster_problems(tables: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what a node of a cluster lacks."""
    cluster, storage, http = (tables.get(name) for name in ("cluster", "storage", "http"))
    if not isinstance(cluster, dict) or cluster.get("enabled") is not True:
        return
    url = storage.get("url", "files:") if isinstance(storage, dict) else "files:"
    if isinstance(url, str) and url.startswith(("files:", "sqlite:")):
        yield Problem(
            key="cluster.enabled",
            message="needs PostgreSQL, because the nodes share one database",
            hint='set storage.url to "postgresql://USER@HOST/DATABASE", or set cluster.enabled to false',
        )
    if isinstance(http, dict) and http.get("token") is None:
        yield Problem(
            key="http.token",
            message="is required by a cluster, because its nodes and browsers use the same token everywhere",
            hint="set the same http.token at all nodes (at least 16 characters, or `env:NAME`)",
        )


_NOT_FOR_OWNERS = ("people", "chats", "commands", "agents", "models", "workspaces", "approve", "moderate")
"""Keys of the role `owner` that would make owners, or keep them from repairing what is wrong."""


def _role_problems(tables: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield roles that name what does not exist, rights taken from owners, and webhooks without their role."""
    roles, plain = tables.get("roles"), RoleSettings().model_dump()
    if not isinstance(roles, dict):
        return
    yield from _role_holder_problems(tables, roles)
    for key in _NOT_FOR_OWNERS:
        owner = roles.get(OWNER_ROLE)
        given = owner.get(key) if isinstance(owner, dict) else None
        if given is not None and given != [] and given != plain[key]:
            hint = "remove it, and name the people in gateway.owners, or give them another role"
            yield Problem(key=f"roles.{OWNER_ROLE}.{key}", message="cannot be set: owners have all rights", hint=hint)
    agents, providers = tables.get("agents"), tables.get("providers")
    kinds: dict[str, tuple[str, Mapping[str, object]]] = {
        "agents": ("agent", agents if isinstance(agents, dict) else {}),
        "models": ("model", _model_names(agents, providers)),
        "workspaces": ("repo", _repo_ids(tables.get("repos"))),
    }
    for name, role in roles.items():
        for key, (what, known) in kinds.items():
            for number, pattern in enumerate(_listed(role, key)):
                if any(fnmatchcase(each, pattern) for each in known):
                    continue
                # Owners may use models that the settings do not mention, so a role may as well.
                if key == "models" and isinstance(providers, dict) and pattern.partition("/")[0] in providers:
                    continue
                hint = did_you_mean(pattern, known) or (f"there are: {', '.join(sorted(known))}" if known else "")
                yield Problem(key=f"roles.{name}.{key}[{number}]", message=f"matches no {what}", hint=hint)
    channels = tables.get("channels")
    webhook = channels.get(WEBHOOK_CHANNEL) if isinstance(channels, dict) else None
    hooks = webhook.get("hooks") if isinstance(webhook, dict) else None
    for name, hook in hooks.items() if isinstance(hooks, dict) else ():
        where = f"channels.{WEBHOOK_CHANNEL}.hooks.{name}.role"
        wanted = hook.get("role") if isinstance(hook, dict) else None
        if wanted == OWNER_ROLE:
            yield Problem(key=where, message="a webhook cannot be an owner", hint="choose another role")
        else:
            yield from _unknown(where, wanted, "role", {each: roles[each] for each in roles if each != OWNER_ROLE})


def _role_holder_problems(tables: Mapping[str, Any], roles: Mapping[str, object]) -> Iterator[Problem]:
    """Yield people and chats that have two roles, or are on no channel. Linked ids are one person."""
    session = tables.get("session")
    links = session.get("identity_links") if isinstance(session, dict) else None
    linked = {each: f"~{name}" for name in (links if isinstance(links, dict) else ()) for each in _listed(links, name)}
    owners = [linked.get(each, each) for each in _listed(tables.get("gateway"), "owners")]
    holders: dict[str, dict[object, str]] = {"people": dict.fromkeys(owners, "gateway.owners"), "chats": {}}
    for name, role in roles.items():
        for key, roles_of in holders.items():
            for number, each in enumerate(_listed(role, key)):
                where = f"roles.{name}.{key}"
                channel, colon, _ = each.partition(":")
                if colon and channel not in {*PROGRAM_CHANNELS, WEBHOOK_CHANNEL}:  # Their own sentence is better.
                    yield from _unknown(f"{where}[{number}]", channel, "channel", tables.get("channels"))
                first = roles_of.setdefault(linked.get(each, each) if key == "people" else each, where)
                if first != where:
                    message = f"{each} has another role by {first}"
                    yield Problem(key=f"{where}[{number}]", message=message, hint="remove one of the two")


def _unknown_model(key: str, named: object, providers: object) -> Iterator[Problem]:
    """Yield a problem unless the value is the name of a provider and a model."""
    provider, _, model = named.partition("/") if isinstance(named, str) else ("", "", "")
    if provider and model:
        yield from _unknown(key, provider, "provider", providers)
    else:
        yield Problem(key=key, message="must be a provider and a model", hint='write it like "local/llama3.3"')


def _listed(table: object, key: str) -> list[str]:
    """Return the texts in a list of a table. Everything else is left to validation."""
    found = table.get(key) if isinstance(table, dict) else None
    return [each for each in found if isinstance(each, str)] if isinstance(found, list | tuple) else []


def _model_names(agents: object, providers: object) -> dict[str, None]:
    """Return the names of all models that the settings mention, alone and with their provider."""
    names: dict[str, None] = {}
    for agent in agents.values() if isinstance(agents, dict) else ():
        model = agent.get("model") if isinstance(agent, dict) else None
        if isinstance(model, str):
            names[model] = names[f"{agent.get('provider', 'offline')}/{model}"] = None
        for fallback in _listed(agent, "fallbacks"):
            names[fallback] = names[fallback.partition("/")[2]] = None
    for name, provider in providers.items() if isinstance(providers, dict) else ():
        models = provider.get("models") if isinstance(provider, dict) else None
        for model in models if isinstance(models, dict) else ():
            names[model] = names[f"{name}/{model}"] = None
    return names


def _repo_ids(repos: object) -> dict[str, object]:
    """Return the ids of the [[repos]]. One that is not a table, or has no id, is left to validation."""
    tables = [repo for repo in repos if isinstance(repo, dict)] if isinstance(repos, list | tuple) else []
    ids = (repo.get("id", repo.get("name")) for repo in tables)
    return {each: None for each in ids if isinstance(each, str)}


def _webhook_problems(channels: object) -> Iterator[Problem]:
    tables = channels if isinstance(channels, dict) else {}
    for name, table in tables.items():
        if name != WEBHOOK_CHANNEL and isinstance(table, dict) and table.get("hooks"):
            hint = f"move them to [channels.{WEBHOOK_CHANNEL}.hooks.<name>]"
            yield Problem(key=f"channels.{name}.hooks", message="this channel has no webhooks", hint=hint)
    webhook = tables.get(WEBHOOK_CHANNEL)
    if not isinstance(webhook, dict):
        return
    if webhook.get("accounts"):
        hint = "give each hook its own table, and remove accounts"
        yield Problem(key=f"channels.{WEBHOOK_CHANNEL}.accounts", message="webhooks have no accounts", hint=hint)
    hooks = webhook.get("hooks")
    for name, hook in hooks.items() if isinstance(hooks, dict) else ():
        chat = hook.get("chat") if isinstance(hook, dict) else None
        if not isinstance(chat, str) or ":" not in chat:
            continue
        channel = chat.partition(":")[0]
        key, where = f"channels.{WEBHOOK_CHANNEL}.hooks.{name}.chat", tables.get(channel)
        if channel == WEBHOOK_CHANNEL:
            yield Problem(key=key, message="webhooks have no chats", hint="name a chat of another channel")
        elif channel not in tables:
            yield from _unknown(key, channel, "channel", tables)
        elif isinstance(where, dict) and where.get("enabled") is False:
            hint = f"set channels.{channel}.enabled to true, or choose another chat"
            yield Problem(key=key, message=f"the channel `{channel}` is not enabled", hint=hint)
        else:
            yield from _account_problems(f"{key}_account", hook.get("chat_account", "default"), where)


def _account_problems(key: str, account: object, channel: object) -> Iterator[Problem]:
    """Yield a problem if `account` is not an account of a channel, whose table this is."""
    table = channel if isinstance(channel, dict) else {}
    accounts = table.get("accounts") or {}
    if isinstance(accounts, dict):
        names = {*accounts, *(["default"] if table.get("token") or not accounts else [])}
        if str(account) not in names:
            hint = f"use one of: {', '.join(sorted(names))}"
            yield Problem(key=key, message="is not an account of that channel", hint=hint)


def _unknown(key: str, name: object, table: str, known: object) -> Iterator[Problem]:
    """Yield a problem if `name` is not in `known`, the entries of a table such as [providers]."""
    if isinstance(name, str) and isinstance(known, dict) and name not in known:
        near = did_you_mean(name, known)
        # A name unlike any other is not quoted: it may be a secret in the wrong place.
        message = f"the {table} `{name}` does not exist" if near else f"this {table} does not exist"
        new = "[[repos]]" if table == "repo" else f"[{table}s.<name>]"
        hint = near or f"add a table {new}" + (f", or use one of: {', '.join(sorted(known))}" if known else "")
        yield Problem(key=key, message=message, hint=hint)

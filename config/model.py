"""The settings, their defaults and their limits. Nothing of this is written anywhere else."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from config.choices import (
    Backend,
    BusyMode,
    DmPolicy,
    DmScope,
    GroupPolicy,
    GroupScope,
    LogFormat,
    LogLevel,
    ProviderKind,
    WaitingSign,
)
from config.kinds import Flag, Id, Location, Options, PlatformId, Price, Seconds, Slug, Text, Url, Whole, is_loopback
from config.problems import Mistake, Mistakes, Problem, did_you_mean
from config.secret import Secret, is_reference
from config.source import source_of

__all__ = [
    "AccountSettings",
    "AgentSettings",
    "Binding",
    "ChannelSettings",
    "FetchSettings",
    "FileSettings",
    "GatewaySettings",
    "HttpSettings",
    "LimitSettings",
    "McpSettings",
    "ModelSettings",
    "ProviderSettings",
    "Repo",
    "SessionSettings",
    "Settings",
    "ShellSettings",
    "ToolSettings",
    "TranscriptionSettings",
    "misfits",
]

_BACKLOG_LIMIT = 20
_SHORTEST_TOKEN = 16
_DEFAULT_ACCOUNT = "default"
_DAY = 86_400


class _Table(BaseModel):
    # Each class would otherwise build its own validator at import; `Settings` builds one for all of them.
    # TOML has `inf` and `nan`, so they are dumped as they are.
    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, hide_input_in_errors=True, ser_json_inf_nan="constants"
    )


class GatewaySettings(_Table):
    """The daemon itself."""

    data_dir: Location = Field(
        default=Path("~/.gatehouse"),
        validate_default=True,
        description="Where sessions, the spool and the generated token are kept.",
    )
    flush_interval: Seconds = Field(
        default=30.0, ge=0.1, le=_DAY, description="Seconds between two moments at which transcripts are made durable."
    )
    shutdown_timeout: Seconds = Field(
        default=30.0,
        ge=0,
        le=_DAY,
        description="Seconds that running turns get to finish when the daemon is told to stop.",
    )
    turn_timeout: Seconds = Field(default=600.0, ge=0.1, le=_DAY, description="Seconds after which a turn is ended.")
    approval_timeout: Seconds = Field(
        default=1800.0,
        ge=1,
        le=30 * _DAY,
        description="Seconds after which a question about a tool that nobody has answered counts as answered with no.",
    )
    max_parallel_turns: Whole = Field(default=64, ge=1, description="How many turns run at the same time.")
    max_queued_per_session: Whole = Field(
        default=100, ge=1, description="How many messages may wait in one session before more are refused."
    )
    max_queued: Whole = Field(
        default=10_000, ge=1, description="How many messages may wait in all sessions together before more are refused."
    )
    max_message_chars: Whole = Field(default=32_000, ge=100, description="The longest message that is accepted.")
    max_backlog_age: Seconds = Field(
        default=86_400.0,
        ge=0,
        le=100 * 365 * _DAY,
        description="Seconds after which a message that came in while the daemon was down is not answered any more.",
    )
    workspace_root: Location = Field(
        default_factory=lambda settled: settled["data_dir"] / "workspace",
        description='The folder that the file tools see; without it, "workspace" in data_dir.',
    )
    log_format: LogFormat = Field(
        default=LogFormat.AUTO, description="How log lines look; auto: console on a terminal, JSON otherwise."
    )
    log_level: LogLevel = Field(default=LogLevel.INFO, description="The least important lines that are logged.")
    owners: tuple[PlatformId, ...] = Field(
        default=(),
        description='Who may use the commands that affect others, like "telegram:123456"; besides those who were '
        "approved as owners.",
    )


class HttpSettings(_Table):
    """The HTTP server: the web page, the API and the health checks."""

    host: Text = Field(default="127.0.0.1", description="The address to listen on; beyond this machine, set token too.")
    port: Whole = Field(default=8420, ge=0, le=65_535, description="The port to listen on; 0 takes any free one.")
    token: Secret | None = Field(
        default=None,
        validate_default=True,
        description="What a caller must present, at least 16 characters; without it a random one is made on first run.",
    )
    allowed_hosts: tuple[Text, ...] = Field(
        default=(), description="Names, besides those of this machine, by which browsers may reach the server."
    )
    max_body_bytes: Whole = Field(default=1_048_576, ge=4096, description="The largest request body that is read.")

    @field_validator("token")
    @classmethod
    def _guards_the_door(cls, token: Secret | None, info: ValidationInfo) -> Secret | None:
        if token is None:
            _refuse_an_open_door(str(info.data.get("host", "localhost")))
            return None
        source = source_of(info)
        if source and not source.resolves and is_reference(token.reveal()):
            return token  # It was taken on trust, and says nothing about the strength of what it stands for.
        _refuse_a_weak_token(token.reveal())
        return token


def _refuse_an_open_door(host: str) -> None:
    if not is_loopback(host):
        raise Mistake(
            "is needed, because other machines can reach the address in http.host",
            "set http.token (at least 16 characters, or `env:NAME`), or set http.host to 127.0.0.1",
        )


def _refuse_a_weak_token(value: str) -> None:
    if len(value) < _SHORTEST_TOKEN:
        raise Mistake(
            f"must have at least {_SHORTEST_TOKEN} characters",
            'make one with: python3 -c "import secrets; print(secrets.token_urlsafe(32))"',
        )
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise Mistake("must be plain ASCII without spaces, since it travels in an HTTP header")


class SessionSettings(_Table):
    """Which messages share a conversation, and how long conversations are kept."""

    dm_scope: DmScope = Field(
        default=DmScope.PER_CHANNEL_PEER, description="Which direct messages share a conversation."
    )
    group_scope: GroupScope = Field(
        default=GroupScope.SHARED, description="Whether a group has one conversation or one for each sender."
    )
    identity_links: dict[Slug, tuple[PlatformId, ...]] = Field(
        default_factory=dict,
        description='The ids of one person on several platforms, like ["telegram:1", "discord:2"].',
    )
    max_messages: Whole = Field(
        default=50, ge=1, description="How many messages before the current turn the model sees."
    )
    context_messages: Whole | None = Field(default=None, ge=1, description="Narrows max_messages further, when given.")
    context_chars: Whole | None = Field(
        default=None, ge=1, description="How many characters of each earlier message the model sees, when given."
    )
    compaction: Flag = Field(
        default=True,
        description="Whether long conversations are summed up before the model loses sight of their start.",
    )
    backlog_limit: Whole = Field(
        default=_BACKLOG_LIMIT, description="How many sessions each scope keeps; the least recently used go first."
    )
    ttl_days: Whole = Field(
        default=30, ge=0, le=100 * 365, description="Days after which an untouched session is removed; 0: never."
    )
    idle_minutes: Whole = Field(
        default=0, ge=0, le=100 * 365 * 1440, description="Minutes after which an idle session ends; 0: never."
    )

    @field_validator("identity_links")
    @classmethod
    def _one_name_each(cls, links: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        named: dict[str, str] = {}
        for name, ids in links.items():
            for linked in ids:
                if named.setdefault(linked, name) != name:
                    raise Mistake(f"{linked} is under both `{named[linked]}` and `{name}`", "keep it under one of them")
        return links

    @field_validator("backlog_limit")
    @classmethod
    def _at_least_one(cls, limit: int, info: ValidationInfo) -> int:
        if limit >= 1:
            return limit
        if source := source_of(info):
            source.warn(f"session.backlog_limit is below 1; {_BACKLOG_LIMIT} is used instead")
        return _BACKLOG_LIMIT


class LimitSettings(_Table):
    """What people may use of the models."""

    tokens_per_user_per_day: Whole = Field(
        default=10_000_000, ge=0, description="Tokens read and written for one person on a day (UTC); 0: no limit."
    )
    tokens_per_turn: Whole = Field(
        default=3_000_000, ge=0, description="Tokens read and written for one answer, all its steps; 0: no limit."
    )


class AgentSettings(_Table):
    """One agent: a model with its prompt and tools, or a process that is one already."""

    backend: Backend = Field(
        default=Backend.LLM, description='"llm": our loop around a model; "acp": a process that speaks ACP.'
    )
    provider: Slug = Field(default="offline", description="The name of the table in [providers] to use.")
    model: Text | None = Field(default=None, description="The provider's name of the model.")
    fallbacks: tuple[Text, ...] = Field(
        default=(),
        description='Models to ask, in this order, when that one is down: "provider/model".',
    )
    system_prompt: str | None = Field(default=None, description="What the model is told first.")
    prompt_file: Location | None = Field(default=None, description="A file to take the system prompt from instead.")
    tools: tuple[Text, ...] | None = Field(
        default=None, description="The tools that the agent may use; without it, all that are safe by default."
    )
    ask: tuple[Text, ...] = Field(
        default=("shell",),
        description="The tools before which a person is asked in the chat; * stands for anything.",
    )
    choosable: Flag = Field(
        default=False, description="Whether everybody may choose it by /agent in a direct chat, and not only owners."
    )
    max_iterations: Whole = Field(default=200, ge=1, description="How many times a turn may call the model.")
    command: tuple[Text, ...] = Field(
        default=(), validate_default=True, description="The program and its arguments, for backend acp."
    )

    @field_validator("prompt_file")
    @classmethod
    def _is_the_only_prompt(cls, file: Path | None, info: ValidationInfo) -> Path | None:
        if file and info.data.get("system_prompt") is not None:
            raise Mistake("cannot be given together with system_prompt", "keep one of the two")
        if file and source_of(info) and not file.is_file():
            raise Mistake(f"there is no file {file}", "create it, or write the prompt into system_prompt")
        return file

    @field_validator("command")
    @classmethod
    def _fits_the_backend(cls, command: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        backend = info.data.get("backend")
        if backend is Backend.ACP and not command:
            raise Mistake('is needed by backend "acp"', 'write it like command = ["gemini", "--acp"]')
        if backend is Backend.LLM and command:
            raise Mistake('is of no use to backend "llm"', 'set backend = "acp", or remove it')
        return command


class ModelSettings(_Table):
    """What is to be known about one model. What it leaves out is known of its family, or a careful guess."""

    context_tokens: Whole | None = Field(
        default=None, ge=1_000, description="How many tokens it reads and writes in one step together."
    )
    max_output_tokens: Whole | None = Field(default=None, ge=16, description="How many tokens it may write in a step.")
    sees_images: Flag | None = Field(default=None, description="Whether it is shown the images that people send.")
    input_price: Price | None = Field(default=None, ge=0, description="What a million tokens cost that it reads.")
    output_price: Price | None = Field(default=None, ge=0, description="What a million tokens cost that it writes.")
    cached_input_price: Price | None = Field(
        default=None, ge=0, description="What a million tokens cost that it reads from the provider's cache."
    )
    cache_write_price: Price | None = Field(
        default=None, ge=0, description="What a million tokens cost that are put into the provider's cache."
    )
    thinking: Flag = Field(default=False, description="Whether it thinks as much as it sees fit, for kind anthropic.")
    thinking_tokens: Whole | None = Field(
        default=None, ge=1_024, description="How much it may think, for models of kind anthropic that need a limit."
    )


class ProviderSettings(_Table):
    """Where an agent's model runs."""

    kind: ProviderKind = Field(description="offline, openai (any compatible endpoint by base_url) or anthropic.")
    base_url: Url | None = Field(default=None, description="The endpoint, when it is not the kind's own.")
    api_key: Secret | None = Field(
        default=None, validate_default=True, description="The key; better a reference like env:OPENAI_API_KEY."
    )
    connect_timeout: Seconds = Field(
        default=10.0, ge=0.1, le=_DAY, description="Seconds that connecting to the endpoint may take."
    )
    idle_timeout: Seconds = Field(
        default=120.0, ge=0.1, le=_DAY, description="Seconds that a model may be silent, at the start or in between."
    )
    patience: Seconds = Field(
        default=60.0, ge=0, le=_DAY, description="Seconds for which a busy or unreachable model is asked again."
    )
    models: dict[Text, ModelSettings] = Field(
        default_factory=dict, description="What is to be known about models, by their names."
    )

    @field_validator("api_key")
    @classmethod
    def _opens_the_endpoint(cls, key: Secret | None, info: ValidationInfo) -> Secret | None:
        kind = info.data.get("kind", ProviderKind.OFFLINE)
        has_own_endpoint = info.data.get("base_url", "") is not None
        if key is None and kind is not ProviderKind.OFFLINE and not has_own_endpoint:
            raise Mistake(
                f"is needed by {_MAKERS[kind]}",
                f'set it, best to a reference like "env:{kind.upper()}_API_KEY", or set base_url to an endpoint '
                "that needs none",
            )
        return key


_MAKERS = {ProviderKind.OPENAI: "OpenAI", ProviderKind.ANTHROPIC: "Anthropic"}


class AccountSettings(_Table):
    """One bot identity on a channel. What it leaves out is as the channel says."""

    enabled: Flag = Field(default=True, description="Whether it is started.")
    token: Secret | None = Field(default=None, description="The bot's token; better a reference like env:NAME.")
    api_base: Url | None = Field(default=None, description="The platform's API, when it is not the official one.")
    dm_policy: DmPolicy = Field(
        default=DmPolicy.PAIRING,
        description="Who may write directly: those in allow and whoever the owner lets in by a code (pairing), those "
        "in allow alone, or everybody.",
    )
    allow: tuple[Id, ...] = Field(default=(), description="The ids of those who may always write.")
    group_policy: GroupPolicy = Field(
        default=GroupPolicy.ALLOWLIST, description="In which groups it answers: those in group_allow, all, or none."
    )
    group_allow: tuple[Id, ...] = Field(
        default=(), description="The ids of the groups it answers in; a server's id stands for its channels."
    )
    require_mention: Flag = Field(default=True, description="Whether it answers in groups only when it is named.")
    rate_limit: Whole = Field(
        default=60, ge=0, description="How many messages a minute one person may send, but for owners; 0: any number."
    )
    busy: BusyMode = Field(
        default=BusyMode.FOLLOWUP,
        description="What becomes of a message that comes in during a turn: answered after it, together with "
        "the others that came, at once, instead of what runs, or by that turn itself, from its next step on.",
    )
    waiting_sign: WaitingSign = Field(
        default=WaitingSign.REACTION,
        description="How somebody learns that a message has to wait: by a reaction where the channel can, by a note, "
        "or not at all.",
    )
    options: Options = Field(
        default_factory=dict, description="What only this channel understands; references become secrets here too."
    )

    @field_validator("allow", "group_allow")
    @classmethod
    def _are_ids(cls, ids: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if any(not each.strip(" *") for each in ids):
            policy = "dm_policy" if info.field_name == "allow" else "group_policy"
            raise Mistake("holds ids only, and `*` is none", f'to let everybody in, set {policy} = "open"')
        return ids


class ChannelSettings(AccountSettings):
    """One chat platform."""

    accounts: dict[Slug, AccountSettings] = Field(
        default_factory=dict, description="Several bot identities on this platform, each with a name."
    )

    @field_validator("accounts")
    @classmethod
    def _fall_back_on_the_channel(
        cls, accounts: dict[str, AccountSettings], info: ValidationInfo
    ) -> dict[str, AccountSettings]:
        return {name: _filled(account, info.data) for name, account in accounts.items()}

    def account_names(self) -> tuple[str, ...]:
        """Name the identities to run: those in `accounts`, and `default` where it has a token or is the only one."""
        own = () if self.accounts and (self.token is None or _DEFAULT_ACCOUNT in self.accounts) else (_DEFAULT_ACCOUNT,)
        return (*own, *self.accounts)

    def for_account(self, name: str) -> "ChannelSettings":
        """Return the settings as one identity sees them, without the others."""
        if name in self.accounts:
            return ChannelSettings.model_construct(accounts={}, **dict(self.accounts[name]))
        return self.model_copy(update={"accounts": {}})


def _filled(account: AccountSettings, channel: Mapping[str, Any]) -> AccountSettings:
    missing = {key: value for key, value in channel.items() if key not in account.model_fields_set}
    return account.model_copy(update=missing)


class Binding(_Table):
    """Sends what matches all the given keys to an agent; the most specific binding wins."""

    agent: Slug = Field(description="The agent that answers.")
    channel: Slug | None = Field(default=None, description="The channel it came by.")
    account: Slug | None = Field(default=None, description="The bot identity it was written to.")
    guild: Id | None = Field(default=None, description="The server or workspace it was written in.")
    peer: Id | None = Field(default=None, description="The chat it was written in.")
    thread: Id | None = Field(default=None, description="The thread or topic it was written in.")

    @model_validator(mode="after")
    def _matches_something(self) -> Self:
        if not any(self.match):
            raise Mistake("matches nothing", "give at least one of channel, account, guild, peer or thread")
        return self

    @property
    def match(self) -> tuple[str | None, ...]:
        """What a message must have: channel, account, guild, peer, thread."""
        return (self.channel, self.account, self.guild, self.peer, self.thread)


class Repo(_Table):
    """A folder that can be chosen as a session's workspace."""

    name: Slug = Field(description="What people call it in chat.")
    path: Location = Field(description="Where it is.")


class McpSettings(_Table):
    """An MCP server whose tools the agents may use."""

    command: tuple[Text, ...] = Field(default=(), description="The program to start, with its arguments.")
    url: Url | None = Field(
        default=None, validate_default=True, description="The address of a server that runs already."
    )
    env: dict[Text, Secret] = Field(default_factory=dict, description="The environment of the program.")
    headers: dict[Text, Secret] = Field(default_factory=dict, description="Sent with each request to the url.")
    timeout: Seconds = Field(
        default=60.0, ge=0.1, le=_DAY, description="Seconds that it gets to start, and to answer a call of a tool."
    )

    @field_validator("url")
    @classmethod
    def _is_the_only_way(cls, url: str | None, info: ValidationInfo) -> str | None:
        command = info.data.get("command")
        if command is not None and bool(command) == bool(url):
            fault = "cannot be given together with command" if url else "or command is needed"
            raise Mistake(fault, "give exactly one of command and url")
        return url


class ShellSettings(_Table):
    """The tool that runs commands, in a sandbox of bubblewrap."""

    enabled: Flag = Field(default=False, description="Whether agents have it.")
    network: Flag = Field(
        default=False,
        description="Whether commands reach the network, and with it every service of this machine, ours too.",
    )
    timeout: Seconds = Field(default=60.0, ge=1, le=3600, description="Seconds after which a command is ended.")
    memory_mb: Whole = Field(default=1024, ge=64, le=1024 * 1024, description="The memory that a command may take.")
    max_processes: Whole = Field(default=64, ge=4, le=4096, description="How many processes a command may have.")
    max_output_chars: Whole = Field(
        default=30_000, ge=1000, le=48_000, description="How much of its output the model sees: beginning and end."
    )
    allow_unsandboxed: Flag = Field(
        default=False,
        description="Whether commands run with all rights of the daemon where there is no sandbox; otherwise refused.",
    )


class FetchSettings(_Table):
    """The tool that fetches pages from the public web."""

    timeout: Seconds = Field(default=20.0, ge=1, le=50, description="Seconds that a page may take, redirects included.")
    max_bytes: Whole = Field(
        default=2_000_000, ge=10_000, le=50_000_000, description="How much of a page is read, after decompression."
    )


class ToolSettings(_Table):
    """What tools may do."""

    shell: ShellSettings = Field(default_factory=ShellSettings, description="Running commands.")
    fetch: FetchSettings = Field(default_factory=FetchSettings, description="Fetching pages.")


class FileSettings(_Table):
    """Files that come with messages or go with answers."""

    max_bytes: Whole = Field(
        default=20_000_000, ge=1, le=2_000_000_000, description="The largest file that is taken or sent."
    )
    max_per_message: Whole = Field(default=10, ge=0, le=100, description="How many files of one message are taken.")
    fetch_timeout: Seconds = Field(
        default=120.0, ge=1, le=3600, description="Seconds that a platform gets to hand over one file."
    )
    max_text_chars: Whole = Field(
        default=20_000,
        ge=0,
        description="Up to how many characters a text file stands in the message itself; longer ones are saved.",
    )
    max_stored_bytes: Whole = Field(
        default=1_000_000_000, ge=1_000_000, description="What all kept files may take; the oldest go first."
    )


class TranscriptionSettings(_Table):
    """What makes text of voice messages; off without a provider."""

    provider: Slug | None = Field(
        default=None, description="The table in [providers] whose endpoint does it; its kind must be openai."
    )
    model: Text = Field(default="whisper-1", description="The endpoint's name of the model.")


class Settings(_Table):
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


def _missing_model(key: str, agent: object, providers: object) -> Iterator[Problem]:
    if not isinstance(agent, dict) or not isinstance(providers, dict) or agent.get("model") is not None:
        return
    provider = providers.get(str(agent.get("provider", "offline")))
    kind = str(provider.get("kind")) if isinstance(provider, dict) else ""
    if kind in {*_MAKERS} and agent.get("backend", Backend.LLM) == Backend.LLM:
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

"""Agents, the providers of their models, and the repos that they work in."""

import os
import re
import stat
from pathlib import Path

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from config.errors import InvalidValue
from config.secrets import Secret, context_of, expand_home
from config.types import (
    DAY,
    AgentPreset,
    Backend,
    FilePath,
    Flag,
    Integer,
    Price,
    ProviderKind,
    Seconds,
    Slug,
    Table,
    Text,
    Url,
    WorkspaceMode,
    resolve_links,
)

VENDORS = {ProviderKind.OPENAI: "OpenAI", ProviderKind.ANTHROPIC: "Anthropic"}
"""The kinds of providers that need a model and, at the vendor's own endpoint, an API key."""


_LLM_ONLY = {
    **dict.fromkeys(("provider", "fallbacks"), "remove it: the program calls its model itself; see model and env"),
    "tools": "remove it: the program has its own tools",
    "skills": "remove it: the program has its own skills",
    "ask": "remove it: the program decides what it asks about; see mode",
    "workspace": "remove it: the program works in one of the repos",
    "max_iterations": "remove it: the program decides that itself",
}
"""Keys that only backend "llm" uses, each with a hint."""
_ACP_ONLY = (
    *("preset", "env", "mode", "repos", "worktree", "client_files", "client_terminal"),
    *("max_active", "idle_minutes", "start_timeout", "sandbox"),
)


class AgentSandboxSettings(Table):
    """The sandbox in which a coding agent runs."""

    network: Flag = Field(
        default=True,
        description="Whether the program can use the network, including every service on this machine. It needs that "
        "to reach its model.",
    )
    memory_mb: Integer = Field(
        default=4096, ge=128, le=1024 * 1024, description="How much memory its processes may use together, in MB."
    )
    max_processes: Integer = Field(
        default=512, ge=8, le=32_768, description="How many processes and threads it may have."
    )
    readable: tuple[FilePath, ...] = Field(
        default=(), description="Further files and folders that it may read, besides its program and the system's."
    )
    home: FilePath | None = Field(
        default=None,
        description="A home folder that all its sessions share, for a program that keeps a login there. Default: each "
        "session has its own.",
    )


class AgentSettings(Table):
    """One agent: a model with a prompt and tools, or a program that speaks ACP."""

    backend: Backend = Field(
        default=Backend.LLM, description='"llm": the built-in loop around a model; "acp": a process that speaks ACP.'
    )
    provider: Slug = Field(default="offline", description="The name of a table in [providers].")
    model: Text | None = Field(
        default=None, description="The provider's name for the model; for backend \"acp\", the program's name for it."
    )
    fallbacks: tuple[Text, ...] = Field(
        default=(),
        description='Models to try in this order if the first one is unavailable: "provider/model".',
    )
    system_prompt: str | None = Field(default=None, description="The system prompt.")
    prompt_file: FilePath | None = Field(default=None, description="A file with the system prompt.")
    tools: tuple[Text, ...] | None = Field(
        default=None, description="The tools that the agent may use. Default: all that are safe."
    )
    skills: tuple[Text, ...] | None = Field(
        default=None, description="The skills that the agent may use; * matches anything. Default: all."
    )
    ask: tuple[Text, ...] = Field(
        default=("shell",),
        description="The tools that need approval in the chat before they run; * matches anything.",
    )
    always_allow: tuple[Text, ...] = Field(
        default=(),
        description="The tools of `ask` that people may allow for good, with the arguments of a call; * matches "
        'anything. For backend "acp": the kinds of calls, like "edit" and "execute".',
    )
    choosable: Flag = Field(
        default=False, description="Whether everyone may choose it with /agent in a direct chat, not only owners."
    )
    workspace: WorkspaceMode = Field(
        default=WorkspaceMode.PRIVATE,
        description='"private": each person and each group has its own workspace; '
        '"shared": everyone who talks to the agent works in one.',
    )
    max_iterations: Integer = Field(default=200, ge=1, description="How many times a turn may call the model.")
    label: Slug | None = Field(
        default=None, description="The label of the nodes of a cluster that it can work at. Default: all nodes."
    )
    preset: AgentPreset | None = Field(
        default=None, description='A known program, for backend "acp". It sets the command and the mode.'
    )
    command: tuple[Text, ...] = Field(
        default=(), validate_default=True, description='The program and its arguments, for backend "acp".'
    )
    env: dict[Text, Secret] = Field(
        default_factory=dict, description='Environment variables for the program, like "env:GEMINI_API_KEY".'
    )
    mode: Text | None = Field(
        default=None,
        description="The mode in which the program works, by its own id. Default: that of the preset, in which it asks "
        "before it changes anything.",
    )
    repos: tuple[Slug, ...] = Field(
        default=(),
        description='The ids of the repos that people may use with it, the first by default, for backend "acp". '
        "Owners may use all.",
    )
    worktree: Flag = Field(
        default=False, description="Whether each session works in a git worktree of its own, on a branch of its own."
    )
    client_files: Flag = Field(
        default=False, description="Whether the gateway reads and writes files of the repository for the program."
    )
    client_terminal: Flag = Field(
        default=False, description="Whether the gateway runs commands in the sandbox for the program."
    )
    max_active: Integer = Field(
        default=5, ge=1, le=1000, description="How many of its sessions may have a running program at a time."
    )
    idle_minutes: Integer = Field(
        default=30,
        ge=0,
        description='Minutes without a message after which a session of backend "acp" is completed; 0: never. '
        "$AGENT_SESSION_IDLE_TIMEOUT overrides it.",
    )
    start_timeout: Seconds = Field(
        default=60.0, ge=1, le=600, description="How many seconds the program may take to start."
    )
    sandbox: AgentSandboxSettings = Field(
        default_factory=AgentSandboxSettings, description='The sandbox of the program, for backend "acp".'
    )

    @field_validator("prompt_file")
    @classmethod
    def _check_prompt_file(cls, file: Path | None, info: ValidationInfo) -> Path | None:
        if file and info.data.get("system_prompt") is not None:
            raise InvalidValue("cannot be combined with system_prompt", "keep one of the two")
        # Settings built in code (without a context) need no files on disk.
        if file and context_of(info) and not file.is_file():
            raise InvalidValue(f"the file {file} does not exist", "create it, or put the prompt into system_prompt")
        return file

    @field_validator(*_LLM_ONLY, *_ACP_ONLY)  # They run only for keys that are set.
    @classmethod
    def _check_backend_uses_key(cls, value: object, info: ValidationInfo) -> object:
        backend, key = info.data.get("backend"), info.field_name or ""
        if backend is Backend.ACP and key in _LLM_ONLY:
            raise InvalidValue('is not used by backend "acp"', _LLM_ONLY[key])
        if backend is Backend.LLM and key in _ACP_ONLY:
            raise InvalidValue('is not used by backend "llm"', f'set backend = "acp", or remove {key}')
        return value

    @model_serializer(mode="wrap")
    def _serialize_used_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Leave out the keys that the backend does not use: `config show` prints a file that can be loaded again."""
        unused = _LLM_ONLY if self.backend is Backend.ACP else (*_ACP_ONLY, "command")
        return {key: value for key, value in handler(self).items() if key not in unused}

    @field_validator("env")
    @classmethod
    def _check_variable_names(cls, env: dict[str, Secret]) -> dict[str, Secret]:
        for name in env:
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
                # The name is not quoted: a secret may have been written in its place.
                hint = 'write it like env = { GEMINI_API_KEY = "env:GEMINI_API_KEY" }'
                raise InvalidValue("contains a name that no environment variable can have", hint)
        return env

    @field_validator("command")
    @classmethod
    def _check_command_fits_backend(cls, command: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        backend = info.data.get("backend")
        # A preset that is not valid is not in the data, and has been reported already.
        if backend is Backend.ACP and not command and info.data.get("preset", "") is None:
            hint = 'set preset = "gemini" or another known one, or command = ["gemini", "--acp"]'
            raise InvalidValue('or preset is required by backend "acp"', hint)
        if backend is Backend.LLM and command:
            raise InvalidValue('is not used by backend "llm"', 'set backend = "acp", or remove command')
        if command and ("/" in command[0] or command[0] == "~"):
            # A path, not a name to look for in PATH: as all paths, it starts at the folder of the file.
            context = context_of(info)
            program = context.path(command[0]) if context else expand_home(Path(command[0]))
            return (str(program), *command[1:])
        return command


class ModelSettings(Table):
    """Facts about one model. Defaults come from the model's family, or are conservative guesses."""

    context_tokens: Integer | None = Field(
        default=None, ge=1_000, description="The context window in tokens, input and output together."
    )
    max_output_tokens: Integer | None = Field(
        default=None, ge=16, description="How many tokens it may write in one response."
    )
    sees_images: Flag | None = Field(default=None, description="Whether it gets the images that people send.")
    input_price: Price | None = Field(default=None, ge=0, description="The price of a million input tokens.")
    output_price: Price | None = Field(default=None, ge=0, description="The price of a million output tokens.")
    cached_input_price: Price | None = Field(
        default=None, ge=0, description="The price of a million input tokens read from the provider's cache."
    )
    cache_write_price: Price | None = Field(
        default=None, ge=0, description="The price of a million input tokens written to the provider's cache."
    )
    thinking: Flag = Field(default=False, description="Whether it thinks as much as it decides to, for kind anthropic.")
    thinking_tokens: Integer | None = Field(
        default=None, ge=1_024, description="The limit on thinking, for models of kind anthropic that need one."
    )


class ProviderSettings(Table):
    """An endpoint that serves models."""

    kind: ProviderKind = Field(description="offline, openai (with base_url: any compatible endpoint) or anthropic.")
    base_url: Url | None = Field(default=None, description="The endpoint. Default: the vendor's own.")
    api_key: Secret | None = Field(
        default=None, validate_default=True, description="The API key; preferably a reference like env:OPENAI_API_KEY."
    )
    connect_timeout: Seconds = Field(
        default=10.0, ge=0.1, le=DAY, description="How many seconds connecting to the endpoint may take."
    )
    idle_timeout: Seconds = Field(
        default=120.0, ge=0.1, le=DAY, description="How many seconds a model may send nothing before the call fails."
    )
    patience: Seconds = Field(
        default=60.0, ge=0, le=DAY, description="For how many seconds calls to a busy or unreachable model are retried."
    )
    models: dict[Text, ModelSettings] = Field(default_factory=dict, description="Facts about models, by name.")

    @field_validator("api_key")
    @classmethod
    def _check_key_for_vendor_endpoint(cls, key: Secret | None, info: ValidationInfo) -> Secret | None:
        # `data` lacks the keys that failed validation. Their own problem is enough, so assume that they are fine.
        kind = info.data.get("kind", ProviderKind.OFFLINE)
        has_own_endpoint = info.data.get("base_url", "") is not None
        if key is None and kind is not ProviderKind.OFFLINE and not has_own_endpoint:
            raise InvalidValue(
                f"is required by {VENDORS[kind]}",
                f'set it, ideally to "env:{kind.upper()}_API_KEY", or set base_url to an endpoint that needs no key',
            )
        return key


class Repo(Table):
    """A folder that a session can use as its workspace."""

    id: Slug = Field(description="The id to use in chats, in the API and in agents.<name>.repos. Sessions refer to it.")
    name: Text = Field(default="", description="A name for people. Default: the id.")
    path: FilePath = Field(description="The folder. Links in it are resolved when the file is read.")
    label: Slug | None = Field(
        default=None, description="The label of the nodes of a cluster that have the folder. Default: all nodes."
    )

    @model_validator(mode="before")
    @classmethod
    def _complete_names(cls, table: object) -> object:
        """Take each of `id` and `name` from the other. Older files have only a name, which had to be a slug."""
        if not isinstance(table, dict):
            return table
        known = table.get("id", table.get("name"))
        return table if known is None else {"id": known, "name": known, **table}

    @field_validator("path")
    @classmethod
    def _resolve_links(cls, path: Path) -> Path:
        return resolve_links(path)

    def find_trouble(self) -> str:
        """Return why sessions cannot use the folder now, as part of a sentence, or an empty string. Reads the disk."""
        try:
            mode = self.path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return f"the folder {self.path} does not exist"
        except OSError as error:
            return f"the folder {self.path} cannot be used: {(error.strerror or 'unknown reason').lower()}"
        if not stat.S_ISDIR(mode):
            return f"{self.path} is not a folder"
        if resolve_links(self.path) != self.path:  # An agent can do that whose own workspace contains this one.
            return f"the folder {self.path} was replaced by a link"
        is_readable = os.access(self.path, os.R_OK | os.X_OK)
        return "" if is_readable else f"this user may not read the folder {self.path}"

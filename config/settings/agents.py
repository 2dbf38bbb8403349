"""Agents, the providers of their models, and the repos that they work in."""

import os
import stat
from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from config.errors import InvalidValue
from config.secrets import Secret, context_of
from config.types import (
    DAY,
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


class AgentSettings(Table):
    """One agent: a model with a prompt and tools, or a process that speaks ACP."""

    backend: Backend = Field(
        default=Backend.LLM, description='"llm": the built-in loop around a model; "acp": a process that speaks ACP.'
    )
    provider: Slug = Field(default="offline", description="The name of a table in [providers].")
    model: Text | None = Field(default=None, description="The provider's name for the model.")
    fallbacks: tuple[Text, ...] = Field(
        default=(),
        description='Models to try in this order if the first one is unavailable: "provider/model".',
    )
    system_prompt: str | None = Field(default=None, description="The system prompt.")
    prompt_file: FilePath | None = Field(default=None, description="A file with the system prompt.")
    tools: tuple[Text, ...] | None = Field(
        default=None, description="The tools that the agent may use. Default: all that are safe."
    )
    ask: tuple[Text, ...] = Field(
        default=("shell",),
        description="The tools that need approval in the chat before they run; * matches anything.",
    )
    always_allow: tuple[Text, ...] = Field(
        default=(),
        description="The tools of `ask` that people may allow for good, with the arguments of a call; * matches "
        "anything.",
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
    command: tuple[Text, ...] = Field(
        default=(), validate_default=True, description='The program and its arguments, for backend "acp".'
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

    @field_validator("command")
    @classmethod
    def _check_command_fits_backend(cls, command: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        backend = info.data.get("backend")
        if backend is Backend.ACP and not command:
            raise InvalidValue('is required by backend "acp"', 'write it like command = ["gemini", "--acp"]')
        if backend is Backend.LLM and command:
            raise InvalidValue('is not used by backend "llm"', 'set backend = "acp", or remove command')
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

    name: Slug = Field(description="The name to use in chat.")
    path: FilePath = Field(description="The folder. Links in it are resolved when the file is read.")

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

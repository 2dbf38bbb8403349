"""Agents, the models that they ask, and the folders that they work in."""

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from config.errors import Mistake
from config.secrets import Secret, source_of
from config.types import DAY, Backend, Flag, Location, Price, ProviderKind, Seconds, Slug, Table, Text, Url, Whole

MAKERS = {ProviderKind.OPENAI: "OpenAI", ProviderKind.ANTHROPIC: "Anthropic"}


class AgentSettings(Table):
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


class ModelSettings(Table):
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


class ProviderSettings(Table):
    """Where an agent's model runs."""

    kind: ProviderKind = Field(description="offline, openai (any compatible endpoint by base_url) or anthropic.")
    base_url: Url | None = Field(default=None, description="The endpoint, when it is not the kind's own.")
    api_key: Secret | None = Field(
        default=None, validate_default=True, description="The key; better a reference like env:OPENAI_API_KEY."
    )
    connect_timeout: Seconds = Field(
        default=10.0, ge=0.1, le=DAY, description="Seconds that connecting to the endpoint may take."
    )
    idle_timeout: Seconds = Field(
        default=120.0, ge=0.1, le=DAY, description="Seconds that a model may be silent, at the start or in between."
    )
    patience: Seconds = Field(
        default=60.0, ge=0, le=DAY, description="Seconds for which a busy or unreachable model is asked again."
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
                f"is needed by {MAKERS[kind]}",
                f'set it, best to a reference like "env:{kind.upper()}_API_KEY", or set base_url to an endpoint '
                "that needs none",
            )
        return key


class Repo(Table):
    """A folder that can be chosen as a session's workspace."""

    name: Slug = Field(description="What people call it in chat.")
    path: Location = Field(description="Where it is.")

"""The settings: all tables together, with what always exists. Defaults and limits stand in `config.tables` alone."""

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field, field_validator, model_validator

from config.choices import ProviderKind
from config.kinds import Slug
from config.misfits import misfits
from config.problems import Mistake, Mistakes, Problem
from config.tables.agents import AgentSettings, ProviderSettings, Repo
from config.tables.channels import Binding, ChannelSettings
from config.tables.daemon import GatewaySettings, HttpSettings
from config.tables.sessions import LimitSettings, SessionSettings
from config.tables.table import Table
from config.tables.tools import FileSettings, McpSettings, ToolSettings, TranscriptionSettings

__all__ = ["Settings", "complete"]


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

"""TOML to validated, frozen settings, and back."""

from config.editor import schema, set_value, set_values, show, unset_value
from config.errors import ConfigError, Problem
from config.loader import Loaded, destination, find, find_ignored, load
from config.model import Settings
from config.reload import ReloadPlan, plan_reload
from config.secrets import Secret
from config.settings.agents import AgentSettings, ModelSettings, ProviderSettings, Repo
from config.settings.channels import AccountSettings, Binding, ChannelSettings
from config.settings.daemon import GatewaySettings, HttpSettings
from config.settings.roles import BUILT_IN_ROLES, GUEST_ROLE, MEMBER_ROLE, OWNER_ROLE, RoleSettings
from config.settings.sessions import ApiSettings, LimitSettings, MemorySettings, SessionSettings
from config.settings.storage import StorageSettings
from config.settings.tools import (
    DocumentSettings,
    FetchSettings,
    FileSettings,
    McpSettings,
    SearchSettings,
    ShellSettings,
    SkillSettings,
    ToolSettings,
    TranscriptionSettings,
)
from config.settings.webhooks import HookSettings
from config.types import (
    ApprovalRight,
    Backend,
    BusyMode,
    DmPolicy,
    DmScope,
    FileSharing,
    GroupPolicy,
    GroupScope,
    HookAnswer,
    HookPreset,
    LogFormat,
    LogLevel,
    MigrateMode,
    ProviderKind,
    SearchEngine,
    StorageEngine,
    WaitingSign,
    WorkspaceMode,
)

__all__ = [
    "BUILT_IN_ROLES",
    "GUEST_ROLE",
    "MEMBER_ROLE",
    "OWNER_ROLE",
    "AccountSettings",
    "AgentSettings",
    "ApiSettings",
    "ApprovalRight",
    "Backend",
    "Binding",
    "BusyMode",
    "ChannelSettings",
    "ConfigError",
    "DmPolicy",
    "DmScope",
    "DocumentSettings",
    "FetchSettings",
    "FileSettings",
    "FileSharing",
    "GatewaySettings",
    "GroupPolicy",
    "GroupScope",
    "HookAnswer",
    "HookPreset",
    "HookSettings",
    "HttpSettings",
    "LimitSettings",
    "Loaded",
    "LogFormat",
    "LogLevel",
    "McpSettings",
    "MemorySettings",
    "MigrateMode",
    "ModelSettings",
    "Problem",
    "ProviderKind",
    "ProviderSettings",
    "ReloadPlan",
    "Repo",
    "RoleSettings",
    "SearchEngine",
    "SearchSettings",
    "Secret",
    "SessionSettings",
    "Settings",
    "ShellSettings",
    "SkillSettings",
    "StorageEngine",
    "StorageSettings",
    "ToolSettings",
    "TranscriptionSettings",
    "WaitingSign",
    "WorkspaceMode",
    "destination",
    "find",
    "find_ignored",
    "load",
    "plan_reload",
    "schema",
    "set_value",
    "set_values",
    "show",
    "unset_value",
]

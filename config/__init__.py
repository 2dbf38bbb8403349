"""TOML to validated, frozen settings, and back."""

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
from config.model import Settings
from config.problems import ConfigError, Problem
from config.reading import Loaded, destination, find, load
from config.secret import Secret
from config.tables.agents import AgentSettings, ModelSettings, ProviderSettings, Repo
from config.tables.channels import AccountSettings, Binding, ChannelSettings
from config.tables.daemon import GatewaySettings, HttpSettings
from config.tables.sessions import LimitSettings, SessionSettings
from config.tables.tools import (
    FetchSettings,
    FileSettings,
    McpSettings,
    ShellSettings,
    ToolSettings,
    TranscriptionSettings,
)
from config.writing import schema, set_value, set_values, show, unset_value

__all__ = [
    "AccountSettings",
    "AgentSettings",
    "Backend",
    "Binding",
    "BusyMode",
    "ChannelSettings",
    "ConfigError",
    "DmPolicy",
    "DmScope",
    "FetchSettings",
    "FileSettings",
    "GatewaySettings",
    "GroupPolicy",
    "GroupScope",
    "HttpSettings",
    "LimitSettings",
    "Loaded",
    "LogFormat",
    "LogLevel",
    "McpSettings",
    "ModelSettings",
    "Problem",
    "ProviderKind",
    "ProviderSettings",
    "Repo",
    "Secret",
    "SessionSettings",
    "Settings",
    "ShellSettings",
    "ToolSettings",
    "TranscriptionSettings",
    "WaitingSign",
    "destination",
    "find",
    "load",
    "schema",
    "set_value",
    "set_values",
    "show",
    "unset_value",
]

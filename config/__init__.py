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
from config.model import (
    AccountSettings,
    AgentSettings,
    Binding,
    ChannelSettings,
    GatewaySettings,
    HttpSettings,
    McpSettings,
    ModelSettings,
    ProviderSettings,
    Repo,
    SessionSettings,
    Settings,
)
from config.problems import ConfigError, Problem
from config.reading import Loaded, destination, find, load
from config.secret import Secret
from config.writing import schema, set_value, show, unset_value

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
    "GatewaySettings",
    "GroupPolicy",
    "GroupScope",
    "HttpSettings",
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
    "WaitingSign",
    "destination",
    "find",
    "load",
    "schema",
    "set_value",
    "show",
    "unset_value",
]

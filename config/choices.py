"""The words that a setting may be."""

from enum import StrEnum

__all__ = [
    "Backend",
    "BusyMode",
    "DmPolicy",
    "DmScope",
    "GroupPolicy",
    "GroupScope",
    "LogFormat",
    "LogLevel",
    "ProviderKind",
    "WaitingSign",
]


class DmScope(StrEnum):
    """Which direct messages share a conversation."""

    MAIN = "main"
    PER_PEER = "per-peer"
    PER_CHANNEL_PEER = "per-channel-peer"
    PER_ACCOUNT_CHANNEL_PEER = "per-account-channel-peer"


class GroupScope(StrEnum):
    """Whether the people of a group share one conversation."""

    SHARED = "shared"
    PER_SENDER = "per-sender"


class DmPolicy(StrEnum):
    """Who may write to the bot directly."""

    PAIRING = "pairing"
    ALLOWLIST = "allowlist"
    OPEN = "open"


class GroupPolicy(StrEnum):
    """In which groups the bot answers."""

    ALLOWLIST = "allowlist"
    OPEN = "open"
    OFF = "off"


class BusyMode(StrEnum):
    """What becomes of a message that comes in while its session is busy."""

    FOLLOWUP = "followup"
    COLLECT = "collect"
    INTERRUPT = "interrupt"
    STEER = "steer"


class WaitingSign(StrEnum):
    """How somebody learns that a message has to wait for others."""

    REACTION = "reaction"
    NOTE = "note"
    OFF = "off"


class LogFormat(StrEnum):
    """How log lines look; `auto` is console on a terminal and JSON otherwise."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Backend(StrEnum):
    """What runs an agent: our own loop around a model, or a process that speaks the Agent Client Protocol."""

    LLM = "llm"
    ACP = "acp"


class ProviderKind(StrEnum):
    OFFLINE = "offline"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"

"""Which settings a reload applies, and which need a restart. Every key of the settings is in one of three lists."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from config.errors import ConfigError
from config.model import Settings, folder_problems
from config.settings.channels import AccountSettings, ChannelSettings
from config.types import Table

# `*` stands for a name that the config file chooses. The keys of an account are those of its channel.
NEEDS_RESTART = frozenset(
    {
        "cluster.address",
        "cluster.enabled",
        "cluster.labels",
        "cluster.lease_seconds",
        "cluster.listen_url",
        "cluster.name",
        "files.max_database_bytes",
        "files.s3_access_key",
        "files.s3_bucket",
        "files.s3_endpoint",
        "files.s3_prefix",
        "files.s3_region",
        "files.s3_secret_key",
        "files.shared",
        "gateway.data_dir",
        "gateway.keep_environment",
        "gateway.max_parallel_turns",
        "http.allowed_hosts",
        "http.host",
        "http.max_body_bytes",
        "http.open_metrics",
        "http.port",
        "storage.connect_timeout",
        "storage.lock_timeout",
        "storage.migrate",
        "storage.mirror",
        "storage.password",
        "storage.statement_timeout",
        "storage.url",
        "tracing.endpoint",
        "tracing.headers",
        "tracing.sample_ratio",
        "tracing.service_name",
    }
)
REOPENS_CHANNEL = frozenset(
    {
        "channels.*.api_base",
        "channels.*.enabled",
        "channels.*.options",
        "channels.*.require_mention",
        "channels.*.token",
    }
)
"""A channel reads these when it is opened, so a reload opens it again. One with HTTP routes needs a restart instead."""
APPLIED = frozenset(
    {
        "agents.*.always_allow",
        "agents.*.ask",
        "agents.*.backend",
        "agents.*.choosable",
        "agents.*.client_files",
        "agents.*.client_terminal",
        "agents.*.command",
        "agents.*.env",
        "agents.*.fallbacks",
        "agents.*.idle_minutes",
        "agents.*.label",
        "agents.*.max_active",
        "agents.*.max_iterations",
        "agents.*.mode",
        "agents.*.model",
        "agents.*.preset",
        "agents.*.prompt_file",
        "agents.*.provider",
        "agents.*.repos",
        "agents.*.sandbox.home",
        "agents.*.sandbox.max_processes",
        "agents.*.sandbox.memory_mb",
        "agents.*.sandbox.network",
        "agents.*.sandbox.readable",
        "agents.*.skills",
        "agents.*.start_timeout",
        "agents.*.system_prompt",
        "agents.*.tools",
        "agents.*.workspace",
        "agents.*.worktree",
        "api.idle_minutes",
        "api.max_active_sessions",
        "api.rate_limit",
        "bindings",
        "channels.*.allow",
        "channels.*.busy",
        "channels.*.dm_policy",
        "channels.*.group_allow",
        "channels.*.group_policy",
        "channels.*.hooks.*.answer",
        "channels.*.hooks.*.callback_field",
        "channels.*.hooks.*.callback_hosts",
        "channels.*.hooks.*.callback_secret",
        "channels.*.hooks.*.callback_url",
        "channels.*.hooks.*.chat",
        "channels.*.hooks.*.chat_account",
        "channels.*.hooks.*.chat_kind",
        "channels.*.hooks.*.chat_thread",
        "channels.*.hooks.*.conversation",
        "channels.*.hooks.*.deadline",
        "channels.*.hooks.*.fields",
        "channels.*.hooks.*.preset",
        "channels.*.hooks.*.prompt",
        "channels.*.hooks.*.role",
        "channels.*.hooks.*.secrets",
        "channels.*.hooks.*.when",
        "channels.*.max_reply_parts",
        "channels.*.rate_limit",
        "channels.*.waiting_sign",
        "cluster.label_timeout",
        "files.fetch_timeout",
        "files.max_bytes",
        "files.max_per_message",
        "files.max_stored_bytes",
        "files.max_text_chars",
        "gateway.approval_timeout",
        "gateway.flush_interval",
        "gateway.log_file",
        "gateway.log_file_bytes",
        "gateway.log_file_count",
        "gateway.log_format",
        "gateway.log_level",
        "gateway.max_backlog_age",
        "gateway.max_message_chars",
        "gateway.max_queued",
        "gateway.max_queued_per_session",
        "gateway.max_reply_parts",
        "gateway.owners",
        "gateway.repo_root",
        "gateway.shutdown_timeout",
        "gateway.timezone",
        "gateway.turn_timeout",
        "gateway.workspace_root",
        "http.token",
        "limits.schedule_interval",
        "limits.schedules_per_chat",
        "limits.tokens_per_turn",
        "limits.tokens_per_user_per_day",
        "mcp.*.command",
        "mcp.*.env",
        "mcp.*.headers",
        "mcp.*.max_result_bytes",
        "mcp.*.max_schema_bytes",
        "mcp.*.max_schemas_bytes",
        "mcp.*.max_tools",
        "mcp.*.timeout",
        "mcp.*.url",
        "memory.cost_per_day",
        "memory.model",
        "memory.prompt_chars",
        "memory.tokens_per_day",
        "providers.*.api_key",
        "providers.*.base_url",
        "providers.*.connect_timeout",
        "providers.*.idle_timeout",
        "providers.*.kind",
        "providers.*.models.*.cache_write_price",
        "providers.*.models.*.cached_input_price",
        "providers.*.models.*.context_tokens",
        "providers.*.models.*.input_price",
        "providers.*.models.*.max_output_tokens",
        "providers.*.models.*.output_price",
        "providers.*.models.*.sees_images",
        "providers.*.models.*.thinking",
        "providers.*.models.*.thinking_tokens",
        "providers.*.patience",
        "repos",
        "roles.*.agents",
        "roles.*.approve",
        "roles.*.ask",
        "roles.*.chats",
        "roles.*.commands",
        "roles.*.cost_per_day",
        "roles.*.models",
        "roles.*.moderate",
        "roles.*.people",
        "roles.*.tokens_per_day",
        "roles.*.tokens_per_turn",
        "roles.*.tools",
        "roles.*.workspaces",
        "schedules",
        "session.archive_days",
        "session.archive_to_memory",
        "session.backlog_limit",
        "session.compaction",
        "session.context_chars",
        "session.context_messages",
        "session.dm_scope",
        "session.group_scope",
        "session.identity_links",
        "session.idle_minutes",
        "session.max_messages",
        "session.recall_linked",
        "session.title_model",
        "session.ttl_days",
        "skills.folders",
        "tools.documents.max_bytes",
        "tools.documents.memory_mb",
        "tools.documents.timeout",
        "tools.fetch.max_bytes",
        "tools.fetch.timeout",
        "tools.images.max_bytes",
        "tools.images.model",
        "tools.images.price",
        "tools.images.provider",
        "tools.images.quality",
        "tools.images.size",
        "tools.images.timeout",
        "tools.search.api_key",
        "tools.search.engine",
        "tools.search.headers",
        "tools.search.link_at",
        "tools.search.max_results",
        "tools.search.results_at",
        "tools.search.snippet_at",
        "tools.search.timeout",
        "tools.search.title_at",
        "tools.search.url",
        "tools.shell.allow_unsandboxed",
        "tools.shell.enabled",
        "tools.shell.max_output_chars",
        "tools.shell.max_processes",
        "tools.shell.memory_mb",
        "tools.shell.network",
        "tools.shell.sandbox_socket",
        "tools.shell.timeout",
        "tools.speech.format",
        "tools.speech.max_bytes",
        "tools.speech.max_chars",
        "tools.speech.model",
        "tools.speech.price",
        "tools.speech.provider",
        "tools.speech.timeout",
        "tools.speech.voice",
        "transcription.model",
        "transcription.provider",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadPlan:
    settings: Settings
    """The settings that are in force after the reload: the old values of the keys that need a restart, else the new."""
    applied: tuple[str, ...]
    restart_needed: tuple[str, ...]


def plan_reload(old: Settings, new: Settings, fixed_channels: Collection[str] = ()) -> ReloadPlan:
    """Compare settings key by key. `fixed_channels` cannot be opened, closed or replaced before a restart.

    Raises `ConfigError` if the new settings don't fit those that stay.
    """
    applied: list[str] = []
    restart_needed: list[str] = []
    changed = set(changed_keys(old, new))
    for key in sorted(changed):
        # A change of the channel's own key shows in all accounts that inherit it.
        if _of_channel(key) in changed - {key}:
            continue
        name = key.split(".")[1] if key.startswith("channels.") else ""
        # Channels and accounts without a field of their own were added or removed as a whole.
        reopens = pattern_of(key) in REOPENS_CHANNEL or pattern_of(key) == "channels.*"
        is_fixed = pattern_of(key) in NEEDS_RESTART or (reopens and name in fixed_channels)
        (restart_needed if is_fixed else applied).append(key)
    gateway = _fixed_values("gateway", old.gateway)
    if new.gateway.data_dir != old.gateway.data_dir and new.gateway.workspace_root.is_relative_to(new.gateway.data_dir):
        gateway["workspace_root"] = old.gateway.workspace_root  # It was derived from the data directory.
        applied = [key for key in applied if key != "gateway.workspace_root"]
    channels = dict(new.channels)
    for name in fixed_channels:
        if name in old.channels:
            channels[name] = _still_open(old.channels[name], new.channels.get(name, ChannelSettings()))
        else:
            channels.pop(name, None)
    settings = new.model_copy(
        update={
            "gateway": new.gateway.model_copy(update=gateway),
            "http": new.http.model_copy(update=_fixed_values("http", old.http)),
            "files": new.files.model_copy(update=_fixed_values("files", old.files)),
            "storage": new.storage.model_copy(update=_fixed_values("storage", old.storage)),
            "cluster": new.cluster.model_copy(update=_fixed_values("cluster", old.cluster)),
            "tracing": old.tracing,
            "channels": channels,
        }
    )
    # The new folders fit the new data directory, but the old one stays in use until the restart.
    if problems := folder_problems(settings):
        raise ConfigError(problems)
    return ReloadPlan(settings=settings, applied=tuple(applied), restart_needed=tuple(restart_needed))


def _fixed_values(name: str, table: Table) -> dict[str, object]:
    """Return the values of the keys of a table that need a restart."""
    return {key: getattr(table, key) for key in type(table).model_fields if f"{name}.{key}" in NEEDS_RESTART}


def is_opened_alike(one: AccountSettings, other: AccountSettings) -> bool:
    """Return whether a channel would be opened in the same way with both settings."""
    return all(getattr(one, key) == getattr(other, key) for key in _OPENING)


_OPENING = tuple(key.rpartition(".")[2] for key in REOPENS_CHANNEL)


def _still_open(old: ChannelSettings, new: ChannelSettings) -> ChannelSettings:
    """Return the settings of a channel that stays as it was opened, with the new rules of the core."""
    accounts = {
        name: new.accounts.get(name, AccountSettings()).model_copy(update={key: getattr(each, key) for key in _OPENING})
        for name, each in old.accounts.items()
    }
    return new.model_copy(update={key: getattr(old, key) for key in _OPENING} | {"accounts": accounts})


def changed_keys(old: object, new: object, path: str = "") -> Iterator[str]:
    """Yield the path of each key whose value differs, and of each named table that was added or removed."""
    match old, new:
        case Table(), Table():
            for key in type(old).model_fields:
                yield from changed_keys(getattr(old, key), getattr(new, key), f"{path}.{key}".lstrip("."))
        case dict(), dict() if any(isinstance(each, Table) for each in (*old.values(), *new.values())):
            for name in sorted({*old, *new}):
                if name in old and name in new:
                    yield from changed_keys(old[name], new[name], f"{path}.{name}")
                else:
                    yield f"{path}.{name}"
        case _:
            if old != new:
                yield path


def pattern_of(key: str) -> str:
    """Return `key` with `*` for the names that the config file chooses, as in the lists above."""
    words = key.split(".")
    match words:
        case ["channels", _, "accounts", _, *rest]:
            return ".".join(["channels", "*", *rest])
        case ["channels", _, "hooks", _, *rest]:
            return ".".join(["channels", "*", "hooks", "*", *rest])
        case ["providers", _, "models", _, *rest]:
            return ".".join(["providers", "*", "models", "*", *rest])
        case [table, _, *rest] if table in _NAMED:
            return ".".join([table, "*", *rest])
        case _:
            return key


def _of_channel(key: str) -> str:
    """Return the same key of the channel, for a key of one of its accounts."""
    words = key.split(".")
    return ".".join([*words[:2], *words[4:]]) if words[2:3] == ["accounts"] else key


_NAMED = frozenset({"agents", "channels", "mcp", "providers", "roles"})
"""Tables whose keys are names."""

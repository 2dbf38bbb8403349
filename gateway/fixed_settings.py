"""The settings that a running daemon cannot change: they stay as they were until it is started anew."""

import structlog

from config import Settings

__all__ = ["with_what_is_fixed"]

log = structlog.get_logger()


def with_what_is_fixed(old: Settings, new: Settings) -> Settings:
    """Return `new` with what stays in force of `old`, and log where the two differ in that."""
    kept = {"data_dir": old.gateway.data_dir, "max_parallel_turns": old.gateway.max_parallel_turns}
    if new.gateway.data_dir != old.gateway.data_dir and new.gateway.workspace_root.is_relative_to(new.gateway.data_dir):
        kept["workspace_root"] = old.gateway.workspace_root
    wanted = {f"gateway.{name}": getattr(new.gateway, name) != value for name, value in kept.items()}
    changed = [key for key, is_changed in {**wanted, "http": new.http != old.http}.items() if is_changed]
    if changed:
        log.warning("restart_needed", keys=changed)
    return new.model_copy(update={"gateway": new.gateway.model_copy(update=kept), "http": old.http})

"""`gatehouse run`: the daemon in the foreground, with its signals."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog

from config import ConfigError, Loaded
from gateway.cli.exits import EXIT_CONFIG, complain
from gateway.cli.settings import load_settings
from gateway.daemon import Daemon, opened
from gateway.errors import CannotStart
from gateway.logs import configure, secrets_in
from gateway.service import notify

__all__ = ["main"]

log = structlog.get_logger()


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    parser = argparse.ArgumentParser(prog="gatehouse run", description="Start the gateway and keep it running.")
    parser.add_argument("--config", type=Path, default=config, metavar="FILE", help="the configuration file to use")
    options = parser.parse_args(arguments)
    os.umask(0o077)  # Whatever we or a library write is ours alone from birth.
    try:
        loaded = load_settings(options.config)
        asyncio.run(_run(loaded, options.config))
    except (ConfigError, CannotStart) as refusal:
        return complain(refusal, EXIT_CONFIG)
    return 0


async def _run(loaded: Loaded, config: Path | None) -> None:
    _configure_logs(loaded)
    async with opened(loaded.settings) as daemon:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, daemon.stop)
        loop.add_signal_handler(signal.SIGHUP, partial(_reload, daemon, config))
        try:
            await daemon.run(ready=partial(_announce, daemon))
        except Exception:  # Logged with all that is known before the command ends with a sentence.
            log.exception("gateway_crashed")
            raise
        finally:
            _tell_service_manager("STOPPING=1")


def _configure_logs(loaded: Loaded) -> None:
    gateway = loaded.settings.gateway
    configure(gateway.log_level, gateway.log_format, secrets_in(loaded.settings))
    for warning in loaded.warnings:
        log.warning("config_odd", warning=warning)


def _announce(daemon: Daemon) -> None:
    _tell_service_manager("READY=1")
    log.info("gateway_ready", url=daemon.url, pid=os.getpid())
    # A journal keeps what it is told, and a link that lets its reader in does not belong there.
    if "JOURNAL_STREAM" not in os.environ:
        print(
            f"\n  Gatehouse is ready. Open this link to chat (it works once):\n\n    {daemon.page}\n", file=sys.stderr
        )


def _tell_service_manager(state: str) -> None:
    notify(os.environ.get("NOTIFY_SOCKET"), state)


def _reload(daemon: Daemon, config: Path | None) -> None:
    """Read the file again; a file with a mistake changes nothing."""
    try:
        loaded = load_settings(config)
        daemon.reload(loaded.settings)
    except (ConfigError, CannotStart) as refusal:
        log.error("reload_refused", reason=str(refusal))  # noqa: TRY400 - the sentence says it all
        return
    _configure_logs(loaded)
    log.info("config_reloaded")

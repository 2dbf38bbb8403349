"""Checks the configuration for `gatehouse config check` and `gatehouse doctor`, as `gatehouse run` would see it."""

import asyncio
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from config import ConfigError
from gateway.admin.client import ControlClient, NotRunning, is_running
from gateway.cli.common import load_settings
from gateway.doctor.configuration import ConfigReport, check_config, report_from_json
from gateway.errors import Refused


def examine_config(config: Path | None) -> ConfigReport:
    """Check the configuration. If a gateway runs with it, that gateway checks it, with its own secrets and rights.

    The shell of this command may lack the environment and the credentials of the gateway.
    """
    try:
        # The data directory, which tells whether the gateway runs, can be read without resolving secrets.
        unresolved = load_settings(config, resolves=False)
    except ConfigError:
        return check_config(partial(load_settings, config), is_running=False)
    directory = unresolved.settings.gateway.data_dir
    is_live = is_running(directory)
    if is_live:
        try:
            report = asyncio.run(_ask_daemon(directory))
        except (NotRunning, Refused):
            pass  # It is just stopping, belongs to `gatehouse chat`, or is an older version.
        else:
            # Another file may name the same data directory.
            if os.path.realpath(report.source) == os.path.realpath(unresolved.source):
                return replace(report, settings=unresolved.settings)
    return check_config(partial(load_settings, config), is_running=is_live)


async def _ask_daemon(directory: Path) -> ConfigReport:
    async with ControlClient(directory) as control:
        return report_from_json(await control.post("/config/check"))

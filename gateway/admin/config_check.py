"""Checks the configuration for `gatehouse config check` and `gatehouse doctor`, as `gatehouse run` would see it."""

import asyncio
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from config import ConfigError, Loaded
from gateway.admin.client import ControlClient, NotRunning, is_running
from gateway.doctor.configuration import ConfigReport, check_config, report_from_json
from gateway.errors import Refused


class LoadConfig(Protocol):
    def __call__(self, *, resolves: bool) -> Loaded:
        """Load the configuration, with or without its secrets. Raises `ConfigError`."""


def examine_config(load: LoadConfig) -> ConfigReport:
    """Check the configuration. If a gateway runs with it, that gateway checks it, with its own secrets and rights.

    The shell of this command may lack the environment and the credentials of the gateway.
    """
    try:
        # The data directory, which tells whether the gateway runs, can be read without resolving secrets.
        unresolved = load(resolves=False)
    except ConfigError:
        return check_config(partial(load, resolves=True), is_running=False)
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
    return check_config(partial(load, resolves=True), is_running=is_live)


async def _ask_daemon(directory: Path) -> ConfigReport:
    async with ControlClient(directory) as control:
        return report_from_json(await control.post("/config/check"))

"""The checks of the configuration and the data directory, put together for `gatehouse doctor` and for the API."""

import os
from collections.abc import Iterator
from pathlib import Path

from config import Settings
from config.secrets import EXPOSED_SECRET
from gateway.doctor.configuration import PORT, ConfigReport
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.doctor.installation import check_permissions
from gateway.doctor.machine import check_clock, check_disk, check_file_system, check_fsync
from gateway.doctor.stores import check_kinds, check_leftovers, check_workspaces


def config_findings(report: ConfigReport) -> Iterator[Finding]:
    """Yield a finding for each problem and warning of the configuration."""
    for problem in report.problems:
        if problem.key != PORT:  # The port has a finding of its own.
            message = f"{problem.key} {problem.message}".strip()
            yield error("config", message, problem.hint or "The gateway won't start until this is fixed.")
    yield from (warning("config", f"{each}.", "Change or ignore it.") for each in report.warnings)
    if not report.problems:
        yield ok("config", f"The configuration is valid: {report.source}.")


def check_directory(settings: Settings, report: ConfigReport) -> list[Finding]:
    """Check the data directory and the disk below it. Blocks."""
    directory = settings.gateway.data_dir
    exposed = Path(report.source) if EXPOSED_SECRET in report.warnings else None
    return [*check_permissions(directory, exposed), *_check_machine(directory), *_check_files(settings)]


def unusable_directory(directory: Path) -> list[Finding] | None:
    """Return why the data directory cannot be checked, or None if it can."""
    if not os.path.lexists(directory):
        return [ok("data", f"{directory} doesn't exist yet. The first start creates it.")]
    if not directory.is_dir():
        return []  # Reported as a problem of the configuration.
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        message = f"User {os.geteuid()} can't use {directory}."
        return [error("permissions", message, "Run this as the gateway's user, or give it the directory.")]
    return None


def _check_machine(directory: Path) -> Iterator[Finding]:
    yield check_disk(directory)
    yield from check_file_system(directory)
    yield check_fsync(directory)
    yield check_clock(directory)


def _check_files(settings: Settings) -> Iterator[Finding]:
    yield from check_kinds(settings)
    yield from check_leftovers(settings.gateway.data_dir)
    yield from check_workspaces(settings)

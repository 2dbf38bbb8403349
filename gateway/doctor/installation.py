"""Checks of the installation: file permissions and the installed service. They block."""

import os
import stat
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from gateway.distribution import REINSTALL_PACKAGE
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.install.units import ServiceScope, program_of, same_unit, service_paths, shipped_units
from gateway.text.plain import count

_OTHERS = 0o077
_UNCHECKED = ("workspace",)
"""Agents choose the permissions of their own files. The folder above is private."""
_NAMED_FILES = 3


def check_permissions(directory: Path, exposed_config: Path | None) -> list[Finding]:
    """Check every file of the data directory. `exposed_config` is a file with a secret that others can read."""
    findings = []
    folder = directory.resolve()  # systemd's StateDirectory is a symbolic link.
    owner = folder.stat().st_uid
    if os.geteuid() not in (owner, 0):
        message = f"{folder} belongs to user {owner}, and you are user {os.geteuid()}."
        findings.append(error("permissions", message, "Run this as the gateway's user, or give it the directory."))
    else:
        foreign, exposed, paths = [], [], [folder]
        for parent, folders, files in os.walk(folder):
            if Path(parent) == folder:
                folders[:] = [name for name in folders if name not in _UNCHECKED]
            paths += (Path(parent, name) for name in (*folders, *files))
        for path in paths:
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue  # The running gateway has just removed it.
            if status.st_uid != owner:
                foreign.append(path)
            # The mode of a symbolic link means nothing.
            if not stat.S_ISLNK(status.st_mode) and status.st_mode & _OTHERS:
                exposed.append(path)
        if exposed:
            message = f"Other users can access {_name_some(exposed)} in {folder}."
            findings.append(error("permissions", message, f"chmod -R go= {folder}", partial(_make_private, exposed)))
        if foreign:
            message = (
                f"Another user owns {_name_some(foreign)} in {folder}, so the gateway may not be able to use them."
            )
            findings.append(error("permissions", message, f"As root: chown -R {owner} {folder}"))
    if exposed_config is not None:
        message = f"{exposed_config} contains a secret, and other users can read it."
        # A warning, as at the start: the gateway works.
        repair = partial(_make_private, [exposed_config])
        findings.append(warning("permissions", message, f"chmod 600 {exposed_config}", repair))
    return findings or [ok("permissions", f"{directory} is private.")]


def _name_some(paths: list[Path]) -> str:
    names = ", ".join(path.name for path in paths[:_NAMED_FILES])
    return f"{count(len(paths), 'file')} ({names}{', ...' if len(paths) > _NAMED_FILES else ''})"


def _make_private(paths: Iterable[Path]) -> None:
    for path in paths:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_OTHERS)


def check_units(home: Path, root: Path = Path("/")) -> list[Finding]:
    """Compare the installed units with those that this version ships."""
    findings = []
    for scope in ServiceScope:
        paths = service_paths(scope, home, root)
        if not paths.unit.exists():
            continue
        fix = (
            f"Reinstall the package: `{REINSTALL_PACKAGE}`. Put your own changes into a drop-in."
            if paths.is_packaged
            else f"`gatehouse service install --{scope}` installs the current units and keeps yours as `.old` files. "
            "Put your own changes into a drop-in."
        )
        for path, shipped in shipped_units(paths).items():
            try:
                text = path.read_text(encoding="utf-8")
            except FileNotFoundError:
                findings.append(error("service", f"{path} is missing, and {paths.unit.name} needs it.", fix))
                continue
            except (OSError, ValueError) as failure:
                findings.append(warning("service", f"Can't read {path} ({failure}).", "Run this as root."))
                continue
            program = program_of(text, home)
            if path.suffix == ".service" and (program is None or not os.access(program, os.X_OK)):
                findings.append(error("service", f"{path} starts {program or 'nothing'}, which can't be run.", fix))
            elif not same_unit(text, shipped):
                findings.append(warning("service", f"{path} differs from the unit of this version.", fix))
            else:
                findings.append(ok("service", f"{path} is up to date."))
    return findings or [ok("service", "Not installed as a service. `gatehouse service install` installs it.")]

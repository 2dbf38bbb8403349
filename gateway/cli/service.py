"""`gatehouse service`: installs, removes and inspects the systemd service."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.cli.common import EXIT_OK, command_parser
from gateway.distribution import NAME, Installation
from gateway.errors import Refused
from gateway.install.installer import InstallStep, find_hidden_program, install_steps, removal_steps, systemctl_command
from gateway.install.units import SERVICE, ServicePaths, ServiceScope, service_paths

_LOG_LINES = "100"


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    parser = command_parser("service", "Install the gateway as a systemd service, and manage it.", config)
    parser.add_argument("action", choices=("install", "uninstall", "status", "logs"), help="what to do")
    owner = parser.add_mutually_exclusive_group()
    owner.add_argument("--user", dest="scope", action="store_const", const="user", help="your user's service")
    owner.add_argument(
        "--system", dest="scope", action="store_const", const="system", help="the system service (needs root)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the steps without doing them")
    parser.add_argument(
        "--shell-network", action="store_true", help="give shell commands and coding agents access to the network"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="logs: print new lines as they arrive")
    parser.add_argument("-n", "--lines", default=_LOG_LINES, help=f"logs: number of lines (default {_LOG_LINES})")
    options = parser.parse_args(arguments)
    scope = ServiceScope(options.scope or (ServiceScope.SYSTEM if os.geteuid() == 0 else ServiceScope.USER))
    paths = service_paths(scope, Path.home())
    match options.action:
        case "install":
            return install(paths, shell_network=options.shell_network, dry_run=options.dry_run)
        case "uninstall" if paths.is_packaged:
            raise Refused(
                f"The service belongs to the Debian package. `sudo systemctl disable --now {SERVICE}` stops it, and "
                f"`sudo apt remove {NAME}` removes it."
            )
        case "uninstall":
            _require_root(paths, dry_run=options.dry_run)
            if _run_steps(removal_steps(paths), dry_run=options.dry_run):
                print(f"Your sessions and {paths.config} are kept.")
            else:
                print(f"No service is installed at {paths.unit}.")
            return EXIT_OK
        case "status":
            command = systemctl_command(scope, "status", "--no-pager", SERVICE)
        case _:
            unit = "--user-unit" if scope is ServiceScope.USER else "--unit"
            units = [word for path in paths.files.values() if path.suffix == ".service" for word in (unit, path.name)]
            follow = "--follow" if options.follow else "--no-pager"
            command = ["journalctl", *units, "--lines", options.lines, follow]
    try:
        return subprocess.run(command, check=False).returncode  # noqa: S603 - systemd's programs and a number.
    except OSError as error:
        raise Refused(f"Can't run `{command[0]}` ({error.strerror}). Does this machine use systemd?") from error


def install(
    paths: ServicePaths,
    *,
    shell_network: bool = False,
    credentials: str = "",
    restart: bool = False,
    dry_run: bool = False,
) -> int:
    """Install or update the service, start it, and print each step. Running it again changes nothing."""
    # Prefer the program of this Python's environment over another one in $PATH.
    beside = Path(sys.executable).parent / "gatehouse"
    found = str(beside) if beside.exists() else shutil.which("gatehouse")
    if found is None:
        raise Refused("Can't find the program `gatehouse`. Reinstall the package.")
    command = Path(found)
    _require_root(paths, dry_run=dry_run)
    if paths.scope is ServiceScope.SYSTEM and (hidden := find_hidden_program(command, Path(sys.base_prefix))):
        source, _ = Installation.present().source()
        raise Refused(
            f"{hidden}. Install Gatehouse elsewhere, e.g. `python3 -m venv /opt/gatehouse` and "
            f"`/opt/gatehouse/bin/pip install {shlex.quote(source)}`, and run this command from there."
        )
    steps = install_steps(paths, command, shell_network=shell_network, credentials=credentials, restart=restart)
    _run_steps(steps, dry_run=dry_run)
    if paths.scope is ServiceScope.USER:
        print("To keep it running after you log out: loginctl enable-linger")
    return EXIT_OK


def _require_root(paths: ServicePaths, *, dry_run: bool) -> None:
    if paths.scope is ServiceScope.SYSTEM and os.geteuid() != 0 and not dry_run:
        raise Refused("Only root can change the system service. Use sudo, or --user for your own service.")


def _run_steps(steps: Iterator[InstallStep], *, dry_run: bool) -> int:
    """Run the steps, or only print them; return their number."""
    number = 0
    for step in steps:
        print(f"would {step.description}" if dry_run else step.description, flush=True)
        if not dry_run:
            step.run()
        number += 1
    return number

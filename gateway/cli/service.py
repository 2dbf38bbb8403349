"""`gatehouse service`: the gateway as a service of systemd."""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.cli.exits import EXIT_FAILED, EXIT_OK, complain
from gateway.cli.usage import Parser, parser
from gateway.errors import Refused
from gateway.installing import Step, hidden_from_service, installation, removal, systemctl
from gateway.service_units import SERVICE, Place, Scope, place

__all__ = ["install", "main"]

_LINES = "100"


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    options = _parser(config).parse_args(arguments)
    scope = Scope(options.scope or (Scope.SYSTEM if os.geteuid() == 0 else Scope.USER))
    where = place(scope, Path.home())
    try:
        match options.action:
            case "install":
                return install(where, shell_network=options.shell_network, is_dry=options.dry_run)
            case "uninstall":
                return _uninstall(where, is_dry=options.dry_run)
            case "status":
                return _hand_over(systemctl(scope, "status", "--no-pager", SERVICE))
            case _:
                return _hand_over(_journal(where, options))
    except Refused as refusal:
        return complain(refusal, EXIT_FAILED)


def _parser(config: Path | None) -> Parser:
    made = parser("service", "Install the gateway as a service of systemd, and look after it.", config)
    made.add_argument("action", choices=("install", "uninstall", "status", "logs"), help="what to do")
    whose = made.add_mutually_exclusive_group()
    whose.add_argument("--user", dest="scope", action="store_const", const="user", help="your own service")
    whose.add_argument("--system", dest="scope", action="store_const", const="system", help="the machine's (as root)")
    made.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    made.add_argument("--shell-network", action="store_true", help="let commands of the shell reach the network")
    made.add_argument("-f", "--follow", action="store_true", help="for logs: go on as they come")
    made.add_argument("-n", "--lines", default=_LINES, help=f"for logs: how many ({_LINES})")
    return made


def install(
    where: Place, *, shell_network: bool = False, credentials: str = "", anew: bool = False, is_dry: bool = False
) -> int:
    """Bring the service to what this version ships, and start it; say each step. Again, it does nothing anew."""
    command = _own_command()
    if where.scope is Scope.SYSTEM:
        _insist_on_root(is_dry=is_dry)
        if hidden := hidden_from_service(command, Path(sys.base_prefix)):
            raise Refused(
                f"{hidden}. Install Gatehouse elsewhere, e.g. `python3 -m venv /opt/gatehouse` and "
                "`/opt/gatehouse/bin/pip install gatehouse`, and run this command from there."
            )
    steps = installation(where, command, shell_network=shell_network, credentials=credentials, anew=anew)
    _take(steps, is_dry=is_dry)
    if where.scope is Scope.USER:
        print("To keep it running while you are logged out: loginctl enable-linger")
    return EXIT_OK


def _uninstall(where: Place, *, is_dry: bool) -> int:
    if where.scope is Scope.SYSTEM:
        _insist_on_root(is_dry=is_dry)
    if not _take(removal(where), is_dry=is_dry):
        print(f"There is no service at {where.unit}.")
    else:
        print(f"Your conversations and {where.config} stay where they are.")
    return EXIT_OK


def _insist_on_root(*, is_dry: bool) -> None:
    if os.geteuid() != 0 and not is_dry:
        raise Refused("The machine's service is root's to change. Use sudo, or --user for a service of your own.")


def _take(steps: Iterator[Step], *, is_dry: bool) -> int:
    """Do the steps, or only say them; return how many there were."""
    taken = 0
    for step in steps:
        print(f"would {step.says}" if is_dry else step.says, flush=True)
        if not is_dry:
            step.do()
        taken += 1
    return taken


def _own_command() -> Path:
    """Return the program that was called: the one beside our Python, if there is one."""
    beside = Path(sys.executable).parent / "gatehouse"
    found = str(beside) if beside.exists() else shutil.which("gatehouse")
    if found is None:
        raise Refused("The program `gatehouse` is not to be found; install the package anew.")
    return Path(found)


def _journal(where: Place, options: argparse.Namespace) -> list[str]:
    whose = "--user-unit" if where.scope is Scope.USER else "--unit"
    units = [word for path in where.files.values() if path.suffix == ".service" for word in (whose, path.name)]
    more = ["--follow"] if options.follow else ["--no-pager"]
    return ["journalctl", *units, "--lines", options.lines, *more]


def _hand_over(command: list[str]) -> int:
    """Let systemd's own program answer, with its own exit code."""
    try:
        return subprocess.run(command, check=False).returncode  # noqa: S603 - systemd's programs, and a number of lines.
    except OSError as missing:
        raise Refused(
            f"`{command[0]}` cannot be run ({missing.strerror}); is this a machine with systemd?"
        ) from missing

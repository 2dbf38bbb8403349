"""The `gatehouse` command. It imports only the module of the requested command, so that `--help` is fast."""

import argparse
import gc
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway import __version__
from gateway.cli.common import (
    EXIT_BUG,
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    CommandParser,
    common_cause,
    discard_output,
    fail,
    repair_streams,
)

COMMANDS = {
    "run": ("gateway.cli.run:main", "start the gateway"),
    "chat": ("gateway.cli.chat:main", "chat from this terminal"),
    "link": ("gateway.cli.remote:link", "print a sign-in link for the chat page"),
    "status": ("gateway.cli.status:main", "show the state of the running gateway"),
    "cluster": ("gateway.cli.cluster:main", "show the nodes of a cluster, and what each of them owns"),
    "reload": ("gateway.cli.remote:reload", "make the running gateway reload its configuration"),
    "log-level": ("gateway.cli.remote:log_level", "change the running gateway's log level"),
    "pair": ("gateway.cli.pair:main", "approve or deny people who have written to a bot"),
    "token": ("gateway.cli.token:main", "create, list and revoke the API tokens of programs"),
    "sessions": ("gateway.cli.sessions:main", "list, show, export, import, move, restore, delete and verify sessions"),
    "schedules": ("gateway.cli.schedules:main", "list, show, pause, resume, run and delete schedules"),
    "upgrade": ("gateway.cli.upgrade:main", "rehearse an update on a copy of the data, or say how to update"),
    "backup": ("gateway.cli.backup:backup", "write all data to one file, even while the gateway runs"),
    "restore": ("gateway.cli.backup:restore", "restore a backup into an empty data directory"),
    "migrate": ("gateway.cli.migrate:main", "copy all sessions and the spool to another storage engine"),
    "import": ("gateway.cli.import_:main", "move in from OpenClaw, nanobot, hermes-agent, PicoClaw, miniclaw or claw0"),
    "db": ("gateway.cli.db:main", "migrate the database, and check its schema"),
    "spool": ("gateway.cli.spool:main", "list waiting and failed messages, and retry replies"),
    "setup": ("gateway.cli.setup:main", "set up a model, a bot and the service step by step"),
    "service": ("gateway.cli.service:main", "install and manage the systemd service"),
    "sandbox": ("gateway.cli.sandbox:main", "run shell commands for the service (started by systemd)"),
    "doctor": ("gateway.cli.doctor:main", "find problems and suggest fixes"),
    "skills": ("gateway.cli.skills:main", "check Agent Skills"),
    "config": ("gateway.cli.config:main", "show, check and change the configuration"),
}
"""By name: the function `(arguments, *, config)` that runs the command, and its line in `--help`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 success, 1 failure, 2 wrong usage, 70 a bug, 78 cannot start."""
    repair_streams()
    try:
        try:
            code = _run(arguments)
        except SystemExit as end:  # argparse exits with 0 after `--help` and 2 after wrong usage.
            code = end.code if isinstance(end.code, int) else EXIT_USAGE
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        # Most likely our own output could not be written. That is not a bug.
        try:
            sys.stdout.flush()
        except OSError:
            discard_output(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return EXIT_FAILED  # The reader of our output has left, as `| head` does. That needs no message.
        return fail(f"System error: {error.strerror or error} ({_location(error)}).", EXIT_FAILED)
    except ImportError as error:  # Handled first, because the next handler has to import too.
        return fail(f"Internal error: {_location(error)}. Please report this bug.", EXIT_BUG)
    except Exception as failure:  # noqa: BLE001 - people get a sentence instead of a traceback.
        cause = common_cause(failure)
        # Imported here because `--help` does not need them. The failed command has imported them by now.
        from config import ConfigError  # noqa: PLC0415
        from gateway.admin.client import NotRunning  # noqa: PLC0415
        from gateway.errors import CannotStart, MustStop, Refused  # noqa: PLC0415
        from gateway.spool.errors import SpoolUnavailable  # noqa: PLC0415

        if isinstance(cause, ConfigError | CannotStart):
            return fail(cause, EXIT_CONFIG)
        if isinstance(cause, NotRunning | Refused | SpoolUnavailable):
            return fail(cause, EXIT_FAILED)
        if isinstance(cause, MustStop):
            return fail(cause, EXIT_BUG)
        return fail(f"Internal error: {_location(cause)}. Please report this bug.", EXIT_BUG)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    width = max(map(len, COMMANDS)) + 2
    table = "\n".join(f"  {name:<{width}}{summary}" for name, (_, summary) in COMMANDS.items())
    parser = CommandParser(
        prog="gatehouse",
        usage="gatehouse [--config FILE] COMMAND ...",
        description="A gateway between chat platforms and LLM agents.",
        epilog=f"commands:\n{table}\n\nRun `gatehouse COMMAND --help` for the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gatehouse {__version__}")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file to use")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return EXIT_OK
    if parsed.command not in COMMANDS:
        from difflib import get_close_matches  # noqa: PLC0415 - only a mistyped command needs it.

        near = get_close_matches(parsed.command, COMMANDS, n=1)
        hint = f"Did you mean `{near[0]}`?" if near else f"The commands are: {', '.join(COMMANDS)}."
        parser.error(f"Unknown command `{parsed.command}`. {hint}")
    module, _, function = COMMANDS[parsed.command][0].partition(":")
    gc.disable()  # Imported modules stay; collecting garbage while importing takes a tenth of the start-up time.
    command = getattr(importlib.import_module(module), function)
    gc.enable()
    code: int = command(parsed.rest, config=parsed.config)
    return code


def _location(error: Exception) -> str:
    """Return the type of the error and the line that raised it, without the values a traceback would show."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}{where}"

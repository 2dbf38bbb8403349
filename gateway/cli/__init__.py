"""The `gatehouse` command. It imports only what the asked command needs, so that `--help` answers at once."""

import argparse
import gc
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway import __version__
from gateway.cli.exits import EXIT_BUG, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, complain
from gateway.cli.streams import forget, tame_streams
from gateway.cli.usage import Parser

__all__ = ["main"]

# name -> (module with a `main(arguments, *, config)`, what `--help` says of it)
COMMANDS = {
    "run": ("gateway.cli.run", "start the gateway"),
    "chat": ("gateway.cli.chat", "talk to it from this terminal"),
    "link": ("gateway.cli.link", "print a new link that opens the chat page"),
    "status": ("gateway.cli.status", "show how the running gateway is doing"),
    "reload": ("gateway.cli.reload", "let the running gateway read its configuration again"),
    "log-level": ("gateway.cli.log_level", "hear more or less of the running gateway in its log"),
    "pair": ("gateway.cli.pair", "let people in who have written to a bot, or keep them out"),
    "sessions": ("gateway.cli.sessions", "list, show, export, import and check conversations"),
    "backup": ("gateway.cli.backup", "write all that the gateway keeps to one file, while it runs or not"),
    "restore": ("gateway.cli.restore", "put a backup in place of an empty data directory"),
    "import": ("gateway.cli.importing", "take in conversations of miniclaw and claw0"),
    "spool": ("gateway.cli.spool", "show what waits or was set aside, and send replies again"),
    "setup": ("gateway.cli.setup", "set up a model, a bot and the service, step by step"),
    "service": ("gateway.cli.service", "install it as a service of systemd, and look after it"),
    "sandbox": ("gateway.cli.sandbox", "run commands for the service's shell; systemd starts it"),
    "doctor": ("gateway.cli.doctor", "look for what is wrong, and say what would help"),
    "config": ("gateway.cli.config", "show, check and change the configuration"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 fine, 1 failed, 2 wrong usage, 70 a bug, 78 cannot start as is."""
    tame_streams()
    try:
        code = _command(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as trouble:
        return _explain(trouble)
    except Exception as bug:  # noqa: BLE001 - a person gets a sentence, and the place for a report
        return _report(bug)
    return code


def _command(arguments: Sequence[str] | None) -> int:
    try:
        return _run(arguments)
    except SystemExit as ending:  # How argparse ends after help (0) and wrong usage (2).
        return ending.code if isinstance(ending.code, int) else EXIT_USAGE


def _run(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return EXIT_OK
    if parsed.command not in COMMANDS:
        parser.error(f"There is no command `{parsed.command}`. {_hint(parsed.command)}")
    gc.disable()  # What is imported stays: looking through it for garbage again and again costs a tenth of the start.
    module = importlib.import_module(COMMANDS[parsed.command][0])
    gc.enable()
    code: int = module.main(parsed.rest, config=parsed.config)
    return code


def _explain(trouble: OSError) -> int:
    """Say what the system refused, most likely to print our answer; whatever it was, it is not our bug."""
    try:
        sys.stdout.flush()
    except OSError:
        forget(sys.stdout)
    if isinstance(trouble, BrokenPipeError):
        return EXIT_FAILED  # The reader of our output has left, as `| head` does, and needs no explanation.
    return complain(f"The system would not have it: {trouble.strerror or trouble} ({_place(trouble)}).", EXIT_FAILED)


def _report(bug: Exception) -> int:
    return complain(f"something went wrong inside: {_place(bug)}. Please report it.", EXIT_BUG)


def _place(bug: Exception) -> str:
    """Say what failed and where, without the values that a traceback would show."""
    trace = bug.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""
    return f"{type(bug).__name__}{where}"


def _hint(wrong: str) -> str:
    # Imported here because only a mistyped command needs it, and `--help` is counted in milliseconds.
    from difflib import get_close_matches  # noqa: PLC0415

    near = get_close_matches(wrong, COMMANDS, n=1)
    return f"Did you mean `{near[0]}`?" if near else f"There are: {', '.join(COMMANDS)}."


def _parser() -> Parser:
    width = max(map(len, COMMANDS)) + 2
    table = "\n".join(f"  {name:<{width}}{summary}" for name, (_, summary) in COMMANDS.items())
    parser = Parser(
        prog="gatehouse",
        usage="gatehouse [--config FILE] COMMAND ...",
        description="A gateway between chat platforms and LLM agents.",
        epilog=f"commands:\n{table}\n\n`gatehouse COMMAND --help` says more about one of them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gatehouse {__version__}")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the configuration file to use")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser

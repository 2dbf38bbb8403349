"""The `gatehouse` command. It imports only what the asked command needs, so that `--help` answers at once."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway import __version__

__all__ = ["main"]

# name -> (module with a `main(arguments, *, config)`, what `--help` says of it)
COMMANDS = {
    "run": ("gateway.cli.run", "start the gateway"),
    "chat": ("gateway.cli.chat", "talk to it from this terminal"),
    "link": ("gateway.cli.link", "print a new link that opens the chat page"),
    "status": ("gateway.cli.status", "show how the running gateway is doing"),
    "config": ("gateway.cli.config", "show, check and change the configuration"),
}

EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 fine, 1 failed, 2 wrong usage, 78 cannot start as configured."""
    parsed = _parser().parse_args(arguments)
    if parsed.command is None:
        _parser().print_help()
        return 0
    module = importlib.import_module(COMMANDS[parsed.command][0])
    try:
        code: int = module.main(parsed.rest, config=parsed.config)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left, as `| head` does; Python would complain once more when it exits.
        sys.stderr.close()
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS)) + 2
    table = "\n".join(f"  {name:<{width}}{summary}" for name, (_, summary) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="gatehouse",
        usage="gatehouse [--config FILE] COMMAND ...",
        description="A gateway between chat platforms and LLM agents.",
        epilog=f"commands:\n{table}\n\n`gatehouse COMMAND --help` says more about one of them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gatehouse {__version__}")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the configuration file to use")
    parser.add_argument("command", nargs="?", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser

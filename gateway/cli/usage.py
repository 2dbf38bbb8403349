"""The parsers of the command line. Light, because `--help` is counted in milliseconds."""

import argparse
from pathlib import Path
from typing import NoReturn

from gateway.cli.exits import EXIT_USAGE, complain

__all__ = ["Parser", "parser"]


class Parser(argparse.ArgumentParser):
    """Answers wrong usage with a sentence and the way out, in place of a page of usage."""

    def error(self, message: str) -> NoReturn:
        sentence = f"{message[:1].upper()}{message[1:]}"
        stop = "" if sentence.endswith((".", "?")) else "."
        raise SystemExit(complain(f"{sentence}{stop} `{self.prog} --help` says more.", EXIT_USAGE))


def parser(name: str, description: str, config: Path | None) -> Parser:
    """Return the parser of the command `name`, which takes `--config` as the whole command line does."""
    made = Parser(prog=f"gatehouse {name}", description=description)
    made.add_argument("--config", type=Path, default=config, metavar="FILE", help="the configuration file to use")
    return made

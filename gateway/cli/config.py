"""`gatehouse config`: look at the settings, check them, change one."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from config import ConfigError, Loaded, destination, find, load, schema, set_value, show, unset_value

__all__ = ["main"]

_OK = 0
_BAD_CONFIG = 78


def main(arguments: Sequence[str], *, config: Path | None, environ: Mapping[str, str] = os.environ) -> int:
    """Run one subcommand; `config` is what `--config` named. Return 0, 2 for wrong usage or 78 for wrong settings."""
    try:
        chosen = _parser().parse_args(arguments)
    except SystemExit as ending:  # How argparse ends after help (0) and wrong usage (2).
        return ending.code if isinstance(ending.code, int) else 2
    try:
        return _run(chosen, config, environ)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return _BAD_CONFIG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gatehouse config", description="Look at the settings, check and change them."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("show", help="print all settings in effect as TOML, secrets as ***")
    commands.add_parser("check", help="print every mistake at once, or OK")
    commands.add_parser("path", help="print which file is used, or would be created")
    commands.add_parser("schema", help="print the JSON Schema of the file, for editors")
    setting = commands.add_parser("set", help="set one key", description="Set one key. Comments in the file are lost.")
    setting.add_argument("key", metavar="KEY", help="a dotted key, like http.port")
    setting.add_argument("value", metavar="VALUE", help="a TOML value, or plain text")
    removing = commands.add_parser("unset", help="remove one key, so that its default holds again")
    removing.add_argument("key", metavar="KEY", help="a dotted key, or a whole table")
    return parser


def _run(chosen: argparse.Namespace, config: Path | None, environ: Mapping[str, str]) -> int:
    match chosen.command:
        case "show":
            return _show(_found(config, environ), environ)
        case "check":
            return _check(_found(config, environ), environ)
        case "path":
            return _path(_target(config, environ))
        case "schema":
            print(json.dumps(schema(), indent=2))
            return _OK
        case "set":
            return _set(_target(config, environ), chosen.key, chosen.value, environ)
        case _:
            return _unset(_target(config, environ), chosen.key, environ)


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def _found(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    return find(config, environ, Path.cwd(), _home(environ))


def _target(config: Path | None, environ: Mapping[str, str]) -> Path:
    return destination(config, environ, Path.cwd(), _home(environ))


def _show(path: Path | None, environ: Mapping[str, str]) -> int:
    # References are not followed: the stars would be the same, and this shell may not have the daemon's environment.
    loaded = load(path, environ, resolves=False)
    print(f"# {path or 'no file: these are the defaults'}")
    print(show(loaded.settings), end="")
    _warn(loaded)
    return _OK


def _check(path: Path | None, environ: Mapping[str, str]) -> int:
    loaded = load(path, environ)
    print(f"OK: {path or 'no file, the defaults are used'}")
    _warn(loaded)
    return _OK


def _warn(loaded: Loaded) -> None:
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _path(path: Path) -> int:
    print(path)
    if not path.exists():
        print("This file does not exist yet; `gatehouse config set` creates it.", file=sys.stderr)
    return _OK


def _set(path: Path, key: str, value: str, environ: Mapping[str, str]) -> int:
    set_value(path, key, value, environ)
    # The value is not repeated: it may be a secret.
    print(f"{key} is set in {path}. A running daemon takes it up at SIGHUP or restart.")
    return _OK


def _unset(path: Path, key: str, environ: Mapping[str, str]) -> int:
    unset_value(path, key, environ)
    print(f"{key} is removed from {path}. A running daemon takes it up at SIGHUP or restart.")
    return _OK

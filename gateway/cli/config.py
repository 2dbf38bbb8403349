"""`gatehouse config`: look at the settings, check them, change one."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from config import (
    ConfigError,
    Loaded,
    LogFormat,
    LogLevel,
    Problem,
    destination,
    find,
    load,
    schema,
    set_value,
    show,
    unset_value,
)
from gateway.cli.exits import EXIT_CONFIG, EXIT_OK, complain
from gateway.cli.streams import tell
from gateway.cli.usage import Parser, parser

__all__ = ["main"]


def main(arguments: Sequence[str], *, config: Path | None, environ: Mapping[str, str] = os.environ) -> int:
    """Run one subcommand; `config` is what `--config` named. Return 0, or 78 for wrong settings."""
    chosen = _parser(config).parse_args(arguments)
    try:
        return _run(chosen, chosen.config, environ)
    except ConfigError as mistakes:
        return complain(mistakes, EXIT_CONFIG)


def _parser(config: Path | None) -> Parser:
    made = parser("config", "Look at the settings, check and change them.", config)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("show", help="print all settings in effect as TOML, secrets as ***")
    commands.add_parser("check", help="print every mistake at once, or OK")
    commands.add_parser("path", help="print which file is used, or would be created")
    commands.add_parser("schema", help="print the JSON Schema of the file, for editors")
    setting = commands.add_parser("set", help="set one key", description="Set one key. Comments in the file are lost.")
    setting.add_argument("key", metavar="KEY", help="a dotted key, like http.port")
    setting.add_argument("value", metavar="VALUE", help="a TOML value, or plain text")
    removing = commands.add_parser("unset", help="remove one key, so that its default holds again")
    removing.add_argument("key", metavar="KEY", help="a dotted key, or a whole table")
    return made


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
            return EXIT_OK
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
    return EXIT_OK


def _check(path: Path | None, environ: Mapping[str, str]) -> int:
    loaded = load(path, environ)
    if faults := _start_faults(loaded):
        raise ConfigError([Problem(key="", message=fault) for fault in faults], path=path)
    print(f"OK: {path or 'no file, the defaults are used'}")
    _warn(loaded)
    return EXIT_OK


def _start_faults(loaded: Loaded) -> list[str]:
    # Imported here because it is most of the gateway, which no other subcommand needs.
    from gateway.logs import configure  # noqa: PLC0415
    from gateway.rehearsal import start_faults  # noqa: PLC0415

    configure(LogLevel.ERROR, LogFormat.CONSOLE, [], None)  # The faults say it all.
    return start_faults(loaded.settings)


def _warn(loaded: Loaded) -> None:
    for warning in loaded.warnings:
        tell(f"warning: {warning}")


def _path(path: Path) -> int:
    print(path)
    if not path.exists():
        tell("This file does not exist yet; `gatehouse config set` creates it.")
    return EXIT_OK


def _set(path: Path, key: str, value: str, environ: Mapping[str, str]) -> int:
    set_value(path, key, value, environ)
    # The value is not repeated: it may be a secret.
    print(f"{key} is set in {path}. `gatehouse reload` puts it in force where a gateway is running.")
    return EXIT_OK


def _unset(path: Path, key: str, environ: Mapping[str, str]) -> int:
    unset_value(path, key, environ)
    print(f"{key} is removed from {path}. `gatehouse reload` puts it in force where a gateway is running.")
    return EXIT_OK

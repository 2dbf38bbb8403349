"""`gatehouse config`: shows, checks and changes the settings."""

import json
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from config import (
    ConfigError,
    LogFormat,
    LogLevel,
    destination,
    find,
    load,
    schema,
    set_value,
    show,
    unset_value,
)
from gateway.cli.common import EXIT_OK, command_parser, load_settings, print_error


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    parser = command_parser("config", "Show, check and change the configuration.", config)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("show", help="print all settings in effect as TOML, with secrets as ***")
    commands.add_parser("check", help="print all problems, or OK")
    commands.add_parser("path", help="print the path of the file that is used or would be created")
    commands.add_parser("schema", help="print the JSON Schema of the file, for editors")
    set_parser = commands.add_parser(
        "set", help="set a key", description="Set a key. Comments and order stay as they are."
    )
    set_parser.add_argument("key", metavar="KEY", help="dotted key, like http.port")
    set_parser.add_argument("value", metavar="VALUE", help="TOML value or plain text")
    unset_parser = commands.add_parser("unset", help="remove a key, so that its default applies again")
    unset_parser.add_argument("key", metavar="KEY", help="dotted key, or a whole table")
    options = parser.parse_args(arguments)
    target = destination(options.config, os.environ, Path.cwd(), Path.home())
    match options.command:
        case "show":
            path = find(options.config, os.environ, Path.cwd(), Path.home())
            # Secrets are not resolved: they print as *** anyway, and this shell may not have the daemon's environment.
            loaded = load(path, os.environ, resolves=False)
            print(f"# {loaded.source}")
            print(show(loaded.settings), end="")
            _print_warnings(loaded.warnings)
        case "check":
            # Imported here because they load most of the gateway, which no other subcommand needs.
            from gateway.admin.config_check import examine_config  # noqa: PLC0415
            from gateway.observability.logging import configure  # noqa: PLC0415

            configure(LogLevel.ERROR, LogFormat.CONSOLE, [], None)  # The report contains everything the log would say.
            report = examine_config(partial(load_settings, options.config))
            if report.problems:
                raise ConfigError(report.problems, path=Path(report.source))
            print(f"OK: {report.source}")
            _print_warnings(report.warnings)
        case "schema":
            print(json.dumps(schema(), indent=2))
        case "path":
            print(target)
            if not target.exists():
                print_error("This file doesn't exist yet. `gatehouse config set` creates it.")
        case "set":
            loaded = set_value(target, options.key, options.value, os.environ)
            # The message leaves out the value, since it may be a secret.
            print(f"Set {options.key} in {target}. Run `gatehouse reload` to apply it.")
            _print_warnings(loaded.warnings)
        case _:
            loaded = unset_value(target, options.key, os.environ)
            print(f"Removed {options.key} from {target}. Run `gatehouse reload` to apply it.")
            _print_warnings(loaded.warnings)
    return EXIT_OK


def _print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        print_error(f"warning: {warning}")

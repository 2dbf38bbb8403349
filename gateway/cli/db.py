"""`gatehouse db`: shows and checks the schema of the database, and migrates it."""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from config import Settings, StorageEngine, StorageSettings
from config.files import make_private_directory
from config.loader import validate
from gateway import __version__
from gateway.admin.client import is_running
from gateway.cli.common import (
    EXIT_FAILED,
    EXIT_OK,
    SettingsParser,
    command_parser,
    load_settings,
    log_to_stderr,
)
from gateway.data_dir import DataDirLock
from gateway.database import migrate
from gateway.errors import CannotStart, Refused
from gateway.text import printable


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    options = _parser(config).parse_args(arguments)
    log_to_stderr()
    # Printing SQL for a named kind of database needs no settings, and no password.
    settings = load_settings(options.config).settings if options.url is None else None
    storage = settings.storage if settings else _named_storage(options.url)
    if storage.engine is StorageEngine.FILES:
        raise Refused('storage.url is "files:", so there is no database. Set it to a database, or add --url.')
    with _explained():
        match options.command:
            case "current":
                print(_describe(migrate.current(storage)))
            case "check":
                return _check(storage)
            case "upgrade":
                _upgrade(storage, settings, options)
            case _:
                _downgrade(storage, settings, options)
    return EXIT_OK


def _parser(config: Path | None) -> SettingsParser:
    parser = command_parser("db", "Show, check and migrate the schema of the database.", config)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("current", help="print which schema the database has")
    commands.add_parser("check", help="compare the database with the schema, and print what differs")
    upgrade = commands.add_parser("upgrade", help="migrate to the newest schema, or to the given one")
    upgrade.add_argument("revision", nargs="?", default=migrate.HEAD, type=_revision, metavar="REVISION")
    downgrade = commands.add_parser("downgrade", help="migrate to an older schema, for an older version of Gatehouse")
    downgrade.add_argument(
        "revision", type=_revision, metavar="REVISION", help=f"a schema like {migrate.REVISIONS[0]}, or {migrate.BASE}"
    )
    downgrade.add_argument(
        "--yes", action="store_true", help=f"confirm that `downgrade {migrate.BASE}` deletes all data"
    )
    for each in (upgrade, downgrade):
        each.add_argument("--sql", action="store_true", help="print the statements, and change nothing")
    for each in commands.choices.values():
        each.add_argument("--url", help="the database, instead of storage.url")
    return parser


def _revision(text: str) -> str:
    if text in {migrate.BASE, *migrate.REVISIONS}:
        return text
    known = ", ".join(migrate.REVISIONS)
    raise argparse.ArgumentTypeError(f"{text} is not a schema that this version knows. It knows {known}")


def _named_storage(url: str) -> StorageSettings:
    """Return the settings for a URL, with the defaults of all others. Raises `ConfigError` if it is not valid."""
    return validate({"storage": {"url": url}}, None, os.environ).settings.storage


@contextmanager
def _explained() -> Iterator[None]:
    """Report what goes wrong as a failure of this command. The same errors keep a daemon from starting."""
    try:
        yield
    except CannotStart as error:
        raise Refused(str(error)) from error
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise Refused(f"{error.strerror or error}.") from error


def _describe(revision: str | None) -> str:
    if revision is None:
        return "The database has no tables yet. `gatehouse db upgrade` creates them."
    if revision == migrate.HEAD:
        return f"The database has schema {revision}, the newest."
    if migrate.is_newer(revision):
        return (
            f"The database has schema {revision} of a newer version. This version, {__version__} (schema "
            f"{migrate.HEAD}), may still use it."
        )
    return f"The database has schema {revision}. The newest is {migrate.HEAD}: run `gatehouse db upgrade`."


def _check(storage: StorageSettings) -> int:
    found = migrate.current(storage)
    print(_describe(found))
    if migrate.is_newer(found):
        print("Only the newer version can check its tables.")
    if found != migrate.HEAD:
        return EXIT_FAILED
    # Imported here because SQLAlchemy, which it needs, is an extra.
    if missing := migrate.missing_extra(storage):
        raise Refused(missing)
    from gateway.database.schema_check import differences  # noqa: PLC0415

    found_differences = differences(storage)
    for difference in found_differences:
        print(printable(difference))
    if not found_differences:
        print("All tables, indexes and views are as they should be.")
    return EXIT_FAILED if found_differences else EXIT_OK


def _upgrade(storage: StorageSettings, settings: Settings | None, options: argparse.Namespace) -> None:
    if options.sql:
        _print_sql(storage, options.revision)
        return
    with _without_gateway(storage, settings):
        before = migrate.upgrade(storage, options.revision)
    if before == options.revision:
        print(f"The database already has schema {before}.")
    elif migrate.is_newer(before):
        print(_describe(before))
    elif before is not None and before > options.revision:
        raise Refused(f"The database has schema {before}. To go back, run `gatehouse db downgrade {options.revision}`.")
    elif before is None:
        print(f"Created the tables of schema {options.revision}.")
    else:
        print(f"Migrated the database from schema {before} to {options.revision}.")


def _downgrade(storage: StorageSettings, settings: Settings | None, options: argparse.Namespace) -> None:
    if options.sql:
        _print_sql(storage, options.revision)
        return
    if options.revision == migrate.BASE and not options.yes:
        raise Refused("This deletes all sessions and messages in the database. Add --yes if you want that.")
    with _without_gateway(storage, settings):
        before = migrate.downgrade(storage, options.revision)
    if (before or migrate.BASE) == options.revision:
        print("There is nothing to do: the database has that schema already.")
    elif before is None or (options.revision != migrate.BASE and before < options.revision):
        state = f"schema {before}" if before else "no tables yet"
        raise Refused(f"The database has {state}. To go forward, run `gatehouse db upgrade {options.revision}`.")
    else:
        print(f"Migrated the database from schema {before} back to {options.revision}.")


@contextmanager
def _without_gateway(storage: StorageSettings, settings: Settings | None) -> Iterator[None]:
    """Keep gateways away from the database. Raises `Refused` or `CannotStart` if one uses it.

    In PostgreSQL, the migration itself looks for one. Gateways that use SQLite hold the lock of the folder.
    """
    directory = settings.gateway.data_dir if settings else None
    if directory is not None and is_running(directory):
        raise Refused(f"A gateway is running on {directory}. Stop it first. Nothing was changed.")
    if storage.engine is not StorageEngine.SQLITE:
        yield
        return
    make_private_directory(storage.path.parent)
    with DataDirLock(storage.path.parent):
        yield


def _print_sql(storage: StorageSettings, revision: str) -> None:
    if missing := migrate.missing_extra(storage):
        raise Refused(missing)
    print(migrate.sql(storage.engine, migrate.current(storage), revision), end="")

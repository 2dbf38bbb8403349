"""Finds, reads and validates the config file."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from config.deprecations import brought_up_to_date
from config.errors import ConfigError, Problem, explain
from config.model import Settings, complete, misfits
from config.secrets import Source
from config.types import DmPolicy, DmScope

_IDLE_VARIABLE = "AGENT_SESSION_IDLE_TIMEOUT"
_SANDBOX_VARIABLE = "GATEHOUSE_SANDBOX_SOCKET"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Settings, the file they are from (None: the defaults), and what is odd about them though no mistake."""

    settings: Settings
    path: Path | None
    warnings: tuple[str, ...]


def find(explicit: Path | None, environ: Mapping[str, str], cwd: Path, home: Path) -> Path | None:
    """Return the file to read, or None for the defaults. A file that was asked for by name must exist."""
    asked = _asked_for(explicit, environ, cwd, home)
    if asked is None:
        return next((path for path in _usual_places(cwd, home) if os.path.exists(path)), None)  # noqa: PTH110  # Path.exists raises for folders we may not enter.
    if not os.path.exists(asked):  # noqa: PTH110  # As above.
        by = "--config" if explicit else "$GATEHOUSE_CONFIG"
        hint = f"create it, or start without {by} to run with the defaults"
        raise ConfigError([Problem(key="", message=f"there is no such file ({by} names it)", hint=hint)], path=asked)
    return asked


def destination(explicit: Path | None, environ: Mapping[str, str], cwd: Path, home: Path) -> Path:
    """Return the file to write: the one that is read or, where there is none, the one to create."""
    asked = _asked_for(explicit, environ, cwd, home)
    return asked or find(None, {}, cwd, home) or home / ".gatehouse" / "gatehouse.toml"


def _asked_for(explicit: Path | None, environ: Mapping[str, str], cwd: Path, home: Path) -> Path | None:
    named = Path(explicit or environ.get("GATEHOUSE_CONFIG") or "~")
    folder, parts = (home, named.parts[1:]) if named.parts[:1] == ("~",) else (cwd, named.parts)
    return folder.joinpath(*parts) if parts else None


def _usual_places(cwd: Path, home: Path) -> tuple[Path, ...]:
    return (
        cwd / "gatehouse.toml",
        home / ".gatehouse" / "gatehouse.toml",
        Path("/etc/gatehouse/gatehouse.toml"),
    )


def load(path: Path | None, environ: Mapping[str, str] = os.environ, *, resolves: bool = True) -> Loaded:
    """Read `path`, or take the defaults for None; a `ConfigError` holds every mistake at once.

    With `resolves` false, references to secrets are not followed: for looking at settings, not for running them.
    """
    tables = read_tables(path) if path else {}
    return validate(tables, path, environ, resolves=resolves)


def read_tables(path: Path) -> dict[str, Any]:
    """Parse the file and nothing more; a `ConfigError` says in one sentence why it could not be."""
    try:
        return parse(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        problem = _unreadable(path, error)
    except UnicodeDecodeError as error:
        problem = Problem(key="", message=f"is not UTF-8 text (byte {error.start})", hint="save it as UTF-8")
    except ValueError as error:  # Also a number too long for Python, which is no TOMLDecodeError.
        problem = Problem(key="", message=f"is not TOML: {error}", hint="text needs quotes, and each key its own line")
    except RecursionError:
        problem = Problem(key="", message="is nested too deeply")
    # Raised out here so that no traceback carries the file's content along.
    raise ConfigError([problem], path=path)


def parse(text: str) -> dict[str, Any]:
    """Parse TOML; raise ValueError or, for what is nested too deeply, RecursionError."""
    tables = tomllib.loads(text)
    _check_numbers(tables)
    return tables


def _check_numbers(value: object) -> None:
    """Keep TOML's own limit, which tomllib does not: Python refuses to print what is much longer."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a whole number does not fit into 64 bits")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_numbers(inner)


def _unreadable(path: Path, error: OSError) -> Problem:
    if isinstance(error, IsADirectoryError):
        return Problem(key="", message="is a folder, not a file", hint=f"did you mean {path / 'gatehouse.toml'}?")
    reason = (error.strerror or "unknown reason").lower()
    return Problem(key="", message=f"cannot be read: {reason}", hint="check that the file exists and is yours to read")


def validate(tables: dict[str, Any], path: Path | None, environ: Mapping[str, str], *, resolves: bool = True) -> Loaded:
    source = _source(path, environ, resolves=resolves)
    problems: list[Problem] = []
    current = brought_up_to_date(tables, source.warn)
    whole = complete(_with_sandbox_socket(_with_idle_override(current, environ, problems), environ))
    try:
        settings = Settings.model_validate(whole, context=source)
    except ValidationError as error:
        problems += explain(error, Settings)
        problems += [problem for problem in misfits(whole) if problem not in problems]
    else:
        if not problems:
            return Loaded(settings=settings, path=path, warnings=(*source.warnings, *_oddities(settings)))
    raise ConfigError(problems, path=path)


def _source(path: Path | None, environ: Mapping[str, str], *, resolves: bool) -> Source:
    mode = path.stat().st_mode if path and path.is_file() else 0
    folder = path.absolute().parent if path else Path.cwd()
    source = Source(environ=environ, folder=folder, resolves=resolves, is_exposed=bool(mode & 0o044))
    if mode & 0o022:
        source.warn("other users can change the file; run chmod 600 on it")
    return source


def _with_idle_override(tables: dict[str, Any], environ: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    minutes = environ.get(_IDLE_VARIABLE, "").strip()
    session = tables.get("session", {})
    if not minutes or not isinstance(session, dict):
        return tables
    if not (minutes.isascii() and minutes.isdecimal()):
        message = f"the environment variable {_IDLE_VARIABLE} must be a whole number of minutes"
        problems.append(
            Problem(key="session.idle_minutes", message=message, hint=f"set it to a number, or unset {_IDLE_VARIABLE}")
        )
        return tables
    return {**tables, "session": {**session, "idle_minutes": int(minutes)}}


def _with_sandbox_socket(tables: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Take the socket from the environment, as the service's unit sets it, unless the file names one."""
    tools = tables.get("tools", {})
    shell = tools.get("shell", {}) if isinstance(tools, dict) else None
    if not environ.get(_SANDBOX_VARIABLE) or not isinstance(shell, dict):
        return tables
    named = {"sandbox_socket": environ[_SANDBOX_VARIABLE], **shell}
    return {**tables, "tools": {**tools, "shell": named}}


def _oddities(settings: Settings) -> Iterator[str]:
    if settings.session.dm_scope is DmScope.PER_PEER and not settings.session.identity_links:
        yield (
            'session.dm_scope is "per-peer" without session.identity_links: '
            "people with equal ids on two platforms would share a conversation"
        )
    for name, channel in settings.channels.items():
        if channel.enabled and channel.dm_policy is DmPolicy.ALLOWLIST and not channel.allow and not channel.accounts:
            yield f'channels.{name}.dm_policy is "allowlist" but channels.{name}.allow is empty: nobody can write to it'
    for number, binding in enumerate(settings.bindings):
        if binding.channel and binding.channel not in settings.channels:
            yield f"bindings[{number}].channel: there is no table [channels.{binding.channel}], so it never matches"

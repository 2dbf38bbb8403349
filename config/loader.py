"""Finds, reads and validates the config file."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from config.deprecations import apply_deprecations
from config.errors import ConfigError, InvalidValue, Problem, explain
from config.model import Settings, add_built_ins, cross_table_problems
from config.secrets import EXPOSED_SECRET, LoadContext
from config.types import WEBHOOK_CHANNEL, Backend, DmPolicy, DmScope
from config.work_trees import check_repo_place

_IDLE_VARIABLE = "AGENT_SESSION_IDLE_TIMEOUT"
_SANDBOX_VARIABLE = "GATEHOUSE_SANDBOX_SOCKET"
_REPO_ROOT_VARIABLE = "AGENT_WORKSPACE_ROOT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Settings, the file they come from (None: the defaults), and warnings for the operator."""

    settings: Settings
    path: Path | None
    warnings: tuple[str, ...]

    @property
    def source(self) -> str:
        """The file, or a sentence that says that there is none."""
        return str(self.path or "no file, so the defaults apply")

    @property
    def has_exposed_secret(self) -> bool:
        """Whether the file itself contains a secret and other users can read it."""
        return EXPOSED_SECRET in self.warnings


def find(explicit: Path | None, environ: Mapping[str, str], cwd: Path, home: Path) -> Path | None:
    """Return the file to read, or None for the defaults.

    `cwd` only serves to complete a relative path that the operator has named. No file in it is used otherwise: an agent
    may have written it, and the configuration names programs to run.

    Raises `ConfigError` if --config (`explicit`) or $GATEHOUSE_CONFIG names a file that does not exist.
    """
    named = _named_path(explicit, environ, cwd, home)
    if named is None:
        return next((path for path in _usual_paths(home) if os.path.exists(path)), None)  # noqa: PTH110  # Path.exists raises for folders we may not enter.
    if not os.path.exists(named):  # noqa: PTH110  # As above.
        origin = "--config" if explicit else "$GATEHOUSE_CONFIG"
        hint = f"create it, or start without {origin} to use the defaults"
        raise ConfigError(
            [Problem(key="", message=f"the file given by {origin} does not exist", hint=hint)], path=named
        )
    return named


def destination(explicit: Path | None, environ: Mapping[str, str], cwd: Path, home: Path) -> Path:
    """Return the file to write: the file that `find` returns, or else the one to create."""
    named = _named_path(explicit, environ, cwd, home)
    return named or find(None, {}, cwd, home) or home / ".gatehouse" / "gatehouse.toml"


def find_ignored(explicit: Path | None, environ: Mapping[str, str], cwd: Path, home: Path) -> Path | None:
    """Return the `gatehouse.toml` in `cwd` if there is one that `find` passes over."""
    path = cwd / "gatehouse.toml"
    is_read = _named_path(explicit, environ, cwd, home) is not None or path in _usual_paths(home)
    return None if is_read or not os.path.exists(path) else path  # noqa: PTH110  # As above.


def _usual_paths(home: Path) -> tuple[Path, ...]:
    return (home / ".gatehouse" / "gatehouse.toml", Path("/etc/gatehouse/gatehouse.toml"))


def _named_path(explicit: Path | None, environ: Mapping[str, str], cwd: Path, home: Path) -> Path | None:
    named = Path(explicit or environ.get("GATEHOUSE_CONFIG") or "~")
    folder, parts = (home, named.parts[1:]) if named.parts[:1] == ("~",) else (cwd, named.parts)
    return folder.joinpath(*parts) if parts else None


def load(
    path: Path | None,
    environ: Mapping[str, str] = os.environ,
    *,
    resolves: bool = True,
    is_running: bool = False,
) -> Loaded:
    """Read and validate `path`, or take the defaults if it is None. Raises `ConfigError` with all problems.

    With `resolves` false, references to secrets are not followed: enough to look at settings, not to run with them. The
    running gateway passes `is_running` when it reads the file again.
    """
    tables = read_tables(path) if path else {}
    return validate(tables, path, environ, resolves=resolves, is_running=is_running)


def read_tables(path: Path) -> dict[str, Any]:
    """Parse the file without validating it. Raises `ConfigError` if it is unreadable or not TOML."""
    try:
        return parse(path.read_bytes().decode("utf-8-sig"))  # Editors on Windows write a byte order mark.
    except IsADirectoryError:
        hint = f"did you mean {path / 'gatehouse.toml'}?"
        problem = Problem(key="", message="is a folder, not a file", hint=hint)
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        hint = "check that the file exists and that you may read it"
        problem = Problem(key="", message=f"cannot be read: {reason}", hint=hint)
    except UnicodeDecodeError as error:
        problem = Problem(key="", message=f"is not UTF-8 text (byte {error.start})", hint="save it as UTF-8")
    except ValueError as error:  # TOMLDecodeError, or a number that is too long for Python.
        hint = "put text in quotes, and each key on its own line"
        problem = Problem(key="", message=f"is not valid TOML: {error}", hint=hint)
    except RecursionError:
        problem = Problem(key="", message="is nested too deeply")
    # Raised outside the handlers: a chained exception would carry the file's content into tracebacks.
    raise ConfigError([problem], path=path)


def parse(text: str) -> dict[str, Any]:
    """Parse TOML. Raises ValueError, or RecursionError if it is nested too deeply."""
    tables = tomllib.loads(text)
    _check_numbers(tables)
    return tables


def _check_numbers(value: object) -> None:
    # TOML limits integers to 64 bits and tomllib does not. Python refuses to print much longer ones.
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a whole number does not fit into 64 bits")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_numbers(inner)


def validate(
    tables: dict[str, Any],
    path: Path | None,
    environ: Mapping[str, str],
    *,
    resolves: bool = True,
    is_running: bool = False,
) -> Loaded:
    """Return the settings in `tables`, as if they had been read from `path`. Raises `ConfigError` with all problems."""
    mode = path.stat().st_mode if path and path.is_file() else 0
    folder = path.absolute().parent if path else Path.cwd()
    context = LoadContext(
        environ=environ, folder=folder, resolves=resolves, is_exposed=bool(mode & 0o044), is_running=is_running
    )
    if mode & 0o022:
        context.warn("other users can change the file; run chmod 600 on it")
    problems: list[Problem] = []
    tables = add_built_ins(apply_environment(apply_deprecations(tables, context.warn), environ, problems))
    try:
        settings = Settings.model_validate(tables, context=context)
    except ValidationError as error:
        problems += explain(error, Settings)
        # Pydantic skips the checks across tables if any key is invalid. Run them here, to report everything at once.
        problems += [problem for problem in cross_table_problems(tables) if problem not in problems]
    else:
        if not problems:
            return Loaded(settings=settings, path=path, warnings=(*context.warnings, *_find_warnings(settings)))
    raise ConfigError(problems, path=path)


def apply_environment(tables: dict[str, Any], environ: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    """Return `tables` with the values that environment variables set; an invalid variable goes to `problems`."""
    # An entry that is not a table stays as it is; validation reports it later.
    minutes = environ.get(_IDLE_VARIABLE, "").strip()
    session = tables.get("session", {})
    if minutes and isinstance(session, dict):
        if minutes.isascii() and minutes.isdecimal():
            tables = {**tables, "session": {**session, "idle_minutes": int(minutes)}}
            if isinstance(api := tables.get("api", {}), dict):
                tables["api"] = {**api, "idle_minutes": int(minutes)}
            if isinstance(agents := tables.get("agents", {}), dict):
                tables["agents"] = {
                    name: {**agent, "idle_minutes": int(minutes)} if _is_coding_agent(agent) else agent
                    for name, agent in agents.items()
                }
        else:
            message = f"the environment variable {_IDLE_VARIABLE} must be a whole number of minutes"
            hint = f"set it to a number, or unset {_IDLE_VARIABLE}"
            problems.append(Problem(key="session.idle_minutes", message=message, hint=hint))
    gateway = tables.get("gateway", {})
    if environ.get(_REPO_ROOT_VARIABLE, "").strip() and isinstance(gateway, dict):
        tables = {**tables, "gateway": {**gateway, "repo_root": environ[_REPO_ROOT_VARIABLE].strip()}}
    tools = tables.get("tools", {})
    shell = tools.get("shell", {}) if isinstance(tools, dict) else None
    if environ.get(_SANDBOX_VARIABLE) and isinstance(shell, dict):
        # The systemd unit sets this variable as a default; the file has precedence.
        shell = {"sandbox_socket": environ[_SANDBOX_VARIABLE], **shell}
        tables = {**tables, "tools": {**tools, "shell": shell}}
    return tables


def _is_coding_agent(table: object) -> bool:
    return isinstance(table, dict) and table.get("backend") == Backend.ACP


def _find_warnings(settings: Settings) -> Iterator[str]:
    """Yield combinations of settings that are valid but probably not intended."""
    if settings.session.dm_scope is DmScope.PER_PEER and not settings.session.identity_links:
        yield (
            'session.dm_scope is "per-peer" without session.identity_links: '
            "two people with the same id on different platforms would share a conversation"
        )
    for name, channel in settings.channels.items():
        if channel.enabled and channel.dm_policy is DmPolicy.ALLOWLIST and not channel.allow and not channel.accounts:
            yield f'channels.{name}.dm_policy is "allowlist" but channels.{name}.allow is empty: no one can write to it'
    webhook = settings.channels.get(WEBHOOK_CHANNEL)
    if webhook is not None and webhook.enabled and not webhook.hooks:
        yield f"channels.{WEBHOOK_CHANNEL} has no hooks: no program can call it"
    for name, agent in settings.agents.items():
        if agent.backend is Backend.ACP and not settings.repos:
            yield f"agents.{name} has no repository to work in: add one as a table [[repos]]"
        if (home := agent.sandbox.home) is not None and not os.path.isdir(home):  # noqa: PTH112 - it never raises.
            yield (
                f"agents.{name}.sandbox.home: the folder {home} does not exist, so the agent can't start: "
                "create it, and log in there"
            )
    for number, binding in enumerate(settings.bindings):
        if binding.channel and binding.channel not in settings.channels:
            yield f"bindings[{number}].channel: there is no table [channels.{binding.channel}], so it never matches"
    has_coding_agent = any(agent.backend is Backend.ACP for agent in settings.agents.values())
    for number, repo in enumerate(settings.repos):
        # Warnings, since the folder may be on a disk that is not mounted. That must not keep the gateway from starting.
        if trouble := repo.find_trouble():
            who = "no session can use" if has_coding_agent else "/workspace does not offer"
            yield f"repos[{number}].path: {trouble}, so {who} `{repo.id}`: restore the folder, or correct the path"
        elif has_coding_agent:
            try:
                check_repo_place(repo.path, settings.gateway.root_of_repos, is_git=True)
            except InvalidValue as error:
                yield f"repos[{number}].path: {error}, so coding agents can't use `{repo.id}`: {error.hint}"

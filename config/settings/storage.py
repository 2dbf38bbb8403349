"""Where sessions and the spool are stored."""

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

from pydantic import Field, ValidationInfo, field_validator, model_validator

from config.errors import InvalidValue
from config.secrets import EXPOSED_SECRET, Secret, context_of, expand_home, is_reference, resolve
from config.types import Flag, MigrateMode, Seconds, StorageEngine, Table

_SCHEMES = {
    "files": StorageEngine.FILES,
    "sqlite": StorageEngine.SQLITE,
    "postgresql": StorageEngine.POSTGRESQL,
    "postgres": StorageEngine.POSTGRESQL,
}
_EXAMPLES = 'use "files:", "sqlite:///srv/gatehouse/gatehouse.db" or "postgresql://gatehouse@localhost/gatehouse"'
_SQLITE_HINT = (
    'write it like "sqlite:///srv/gatehouse/gatehouse.db", or "sqlite:gatehouse.db" for the folder of this file'
)


class StorageSettings(Table):
    """Where sessions and the spool are stored.

    `url` never contains a password: one that was written into it is moved to `password`.
    """

    url: str = Field(
        default="files:",
        description='"files:" (transcripts and a spool in data_dir), "sqlite:///PATH" or '
        '"postgresql://USER@HOST/DATABASE"; or a reference like env:DATABASE_URL.',
    )
    password: Secret | None = Field(
        default=None,
        validate_default=True,
        description="The password of the PostgreSQL user; preferably a reference like env:GATEHOUSE_DB_PASSWORD.",
    )
    mirror: Flag = Field(
        default=False,
        description="Whether transcripts are also written as JSONL files to data_dir, next to the database.",
    )
    migrate: MigrateMode = Field(
        default=MigrateMode.AUTO,
        description='"auto": the gateway migrates the database when it starts; "manual": `gatehouse db upgrade` does.',
    )
    connect_timeout: Seconds = Field(
        default=10.0, ge=1, le=600, description="How many seconds connecting to the database may take."
    )
    statement_timeout: Seconds = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="After how many seconds the database cancels a statement; 0 means never.",
    )
    lock_timeout: Seconds = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="How many seconds a statement waits for a lock in the database; 0 means without limit.",
    )

    @property
    def engine(self) -> StorageEngine:
        """The engine of the URL. A reference that was not resolved may name any engine; it counts as PostgreSQL."""
        return _SCHEMES.get(self.url.partition(":")[0], StorageEngine.POSTGRESQL)

    @property
    def path(self) -> Path:
        """The file of the SQLite database."""
        if self.engine is not StorageEngine.SQLITE:
            raise ValueError("Only SQLite has a path.")
        return Path(unquote(self.url.removeprefix("sqlite://")))

    @model_validator(mode="before")
    @classmethod
    def _move_password(cls, table: object, info: ValidationInfo) -> object:
        """Resolve a reference in `url`, and move the password out of it before anything can print it."""
        if not isinstance(table, dict) or not isinstance(table.get("url"), str):
            return table
        url, context = str(table["url"]), context_of(info)
        if is_reference(url):
            try:
                url = resolve(url, context).reveal()
            except InvalidValue:
                return table  # The validator of `url` reports it, with its key.
        bare, password = split_password(url)
        if password is None:
            return {**table, "url": bare}
        if url == table["url"] and context and context.is_exposed:
            context.warn(EXPOSED_SECRET)
        # Only the validator of `password` can report a problem with its key.
        return {**table, "url": bare, "password": _IN_TWO_PLACES if table.get("password") else Secret(password)}

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str, info: ValidationInfo) -> str:
        # No message quotes the URL: it may have a password in an unusual place.
        context = context_of(info)
        if is_reference(url):
            resolve(url, context)  # Raises if it cannot be resolved.
            return url
        scheme, colon, rest = url.partition(":")
        engine = _SCHEMES.get(scheme.lower()) if colon else None
        if engine is None:
            driver = scheme.lower().partition("+")[0]
            if driver in _SCHEMES:
                raise InvalidValue("must not name a driver", f'start it with "{driver}:", without the `+`')
            raise InvalidValue("must start with files:, sqlite: or postgresql:", _EXAMPLES)
        match engine:
            case StorageEngine.FILES:
                if rest.strip("/"):
                    raise InvalidValue("has a path behind files:", 'write "files:", and set gateway.data_dir')
                return "files:"
            case StorageEngine.SQLITE:
                return _sqlite_url(rest, context.path if context else _absolute)
            case StorageEngine.POSTGRESQL:
                return postgresql_url(rest)

    @field_validator("password")
    @classmethod
    def _check_password(cls, password: Secret | None, info: ValidationInfo) -> Secret | None:
        if password is _IN_TWO_PLACES:
            raise InvalidValue("is set although storage.url contains a password", "remove the password from the URL")
        url = info.data.get("url")
        if password is not None and url is not None and not is_reference(url) and not url.startswith("postgresql:"):
            raise InvalidValue("is used by PostgreSQL only", "remove it, or set storage.url to a postgresql:// URL")
        return password

    @field_validator("mirror")
    @classmethod
    def _check_mirror(cls, mirrors: bool, info: ValidationInfo) -> bool:  # noqa: FBT001 - pydantic calls it.
        if mirrors and info.data.get("url") == "files:":
            hint = "remove it, or set storage.url to a database"
            raise InvalidValue('must be false for "files:", whose transcripts are files already', hint)
        return mirrors


_IN_TWO_PLACES = Secret("a password in the URL and in its own key")


def split_password(url: str) -> tuple[str, str | None]:
    """Return a PostgreSQL URL without its password, and the password. Other texts are returned as they are."""
    if not re.match(r"postgres(ql)?(\+\w*)?://", url, re.IGNORECASE):
        return url, None
    head, question_mark, query = url.partition("?")
    scheme, _, rest = head.partition("://")
    # Not `urlsplit`: a password may contain characters that end the host there, such as `#`.
    login, at, place = rest.rpartition("@")
    user, _, in_login = login.partition(":")
    passwords = [unquote(in_login)]
    options = []
    for option in query.split("&"):
        name, _, value = option.partition("=")
        if unquote(name) == "password":
            passwords.append(unquote(value))
        else:
            options.append(option)
    bare = f"{scheme}://{user}{at}{place}{question_mark if any(options) else ''}{'&'.join(options)}"
    return bare, passwords[-1] or None


def _absolute(text: str) -> Path:
    return Path.cwd() / expand_home(Path(text))


def _sqlite_url(rest: str, make_absolute: Callable[[str], Path]) -> str:
    """Return the URL of a SQLite file with its absolute path."""
    if rest.startswith("//") and not rest.startswith("///"):
        has_host = bool(rest.strip("/"))
        raise InvalidValue("names a host, but SQLite has none" if has_host else "has no path", _SQLITE_HINT)
    text = unquote(rest.removeprefix("//"))
    if not text.strip("/") or text.endswith("/") or "\0" in text:
        raise InvalidValue("has no path to a file", _SQLITE_HINT)
    if ":memory:" in text:
        raise InvalidValue("must be a file: a database in memory would be lost", _SQLITE_HINT)
    if "?" in rest or "#" in rest:
        raise InvalidValue("has options, but only PostgreSQL has them", _SQLITE_HINT)
    # `sqlite:////srv/x` is how SQLAlchemy spells an absolute path.
    path = make_absolute(re.sub("^/+", "/", text))
    if path.parent == Path("/"):
        # SQLAlchemy takes `sqlite:///x` for a relative path.
        raise InvalidValue("is a file in the root folder", _SQLITE_HINT)
    return f"sqlite://{quote(str(path))}"


def postgresql_url(rest: str) -> str:
    """Return the URL of a PostgreSQL database. libpq checks the rest of it when it connects."""
    hint = 'write it like "postgresql://gatehouse@localhost/gatehouse"'
    if not rest.startswith("//"):
        raise InvalidValue("is not a URL", hint)
    place, _, query = rest.removeprefix("//").partition("?")
    options = {unquote(option.partition("=")[0]) for option in query.split("&")}
    if "sslpassword" in options:
        raise InvalidValue("must not contain sslpassword", "use a key file without a passphrase, with mode 0600")
    if not place.partition("/")[2] and not options & {"dbname", "service"}:
        raise InvalidValue("names no database", hint)
    return f"postgresql:{rest}"

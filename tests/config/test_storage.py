"""The table [storage]: where sessions and the spool are stored."""

from pathlib import Path

import pytest

from config import MigrateMode, Settings, StorageEngine, StorageSettings, load, plan_reload, show
from config.secrets import EXPOSED_SECRET
from gateway.observability.logging import secrets_in
from tests.config.harness import CANARY, problems_of, write_config


def storage_of(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> StorageSettings:
    return load(write_config(tmp_path, f"[storage]\n{text}\n"), environ or {}).settings.storage


def test_files_are_the_default(tmp_path: Path) -> None:
    storage = load(None, {"HOME": str(tmp_path)}).settings.storage
    assert (storage.url, storage.engine, storage.migrate) == ("files:", StorageEngine.FILES, MigrateMode.AUTO)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///srv/chat/gatehouse.db", "/srv/chat/gatehouse.db"),
        ("sqlite:////srv/chat/gatehouse.db", "/srv/chat/gatehouse.db"),
        ("sqlite:/srv/chat/gatehouse.db", "/srv/chat/gatehouse.db"),
        ("sqlite:gatehouse.db", "{folder}/gatehouse.db"),
        ("sqlite:data/a%20b.db", "{folder}/data/a b.db"),
        ("sqlite:~/gatehouse.db", "/home/me/gatehouse.db"),
        ("SQLite:gatehouse.db", "{folder}/gatehouse.db"),
    ],
)
def test_a_sqlite_url_names_a_file(tmp_path: Path, url: str, path: str) -> None:
    storage = storage_of(tmp_path, f'url = "{url}"', {"HOME": "/home/me"})
    assert storage.engine is StorageEngine.SQLITE
    assert storage.path == Path(path.format(folder=tmp_path))
    assert StorageSettings(url=storage.url) == storage


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://gatehouse@db.example.org:5433/gatehouse?sslmode=verify-full",
        "postgresql:///gatehouse?host=/run/postgresql",
        "postgresql://one:1,two:2/gatehouse?target_session_attrs=read-write",
        "postgresql://?service=gatehouse",
    ],
)
def test_a_postgresql_url_stays_as_it_is(tmp_path: Path, url: str) -> None:
    storage = storage_of(tmp_path, f'url = "{url}"')
    assert (storage.url, storage.engine, storage.password) == (url, StorageEngine.POSTGRESQL, None)


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        (f"postgresql://me:{CANARY}@db/gatehouse", "postgresql://me@db/gatehouse"),
        (f"postgres://me:{CANARY}@db/gatehouse?sslmode=require", "postgresql://me@db/gatehouse?sslmode=require"),
        (f"postgresql://me@db/gatehouse?password={CANARY}", "postgresql://me@db/gatehouse"),
        (f"postgresql://db/gatehouse?user=me&password={CANARY}&x=y", "postgresql://db/gatehouse?user=me&x=y"),
        (f"postgresql://me:%63{CANARY[1:]}@db/gatehouse", "postgresql://me@db/gatehouse"),
    ],
)
@pytest.mark.parametrize("place", ["file", "environment"])
def test_a_password_in_the_url_is_never_shown(tmp_path: Path, url: str, bare: str, place: str) -> None:
    written = url if place == "file" else "env:DATABASE_URL"
    path = write_config(tmp_path, f'[storage]\nurl = "{written}"\n')
    settings = load(path, {"DATABASE_URL": url}).settings
    assert settings.storage.url == bare
    assert settings.storage.password is not None
    assert settings.storage.password.reveal() == CANARY
    assert settings.storage.password in set(secrets_in(settings))
    assert CANARY not in show(settings) + repr(settings)


def test_a_password_in_a_file_that_others_can_read_is_warned_about(tmp_path: Path) -> None:
    path = write_config(tmp_path, f'[storage]\nurl = "postgresql://me:{CANARY}@db/gatehouse"\n')
    assert load(path, {}).warnings == ()
    path.chmod(0o644)
    assert load(path, {}).warnings == (EXPOSED_SECRET,)


def test_a_password_is_a_reference_like_other_secrets(tmp_path: Path) -> None:
    text = 'url = "postgresql://me@db/gatehouse"\npassword = "env:DB_PASSWORD"'
    storage = storage_of(tmp_path, text, {"DB_PASSWORD": CANARY})
    assert storage.password is not None
    assert storage.password.reveal() == CANARY
    problems = problems_of(write_config(tmp_path, f"[storage]\n{text}\n"))
    assert "DB_PASSWORD is not set" in problems["storage.password"].message


def test_a_url_in_the_environment_need_not_be_known_to_look_at_settings(tmp_path: Path) -> None:
    path = write_config(tmp_path, '[storage]\nurl = "env:DATABASE_URL"\nmirror = true\npassword = "env:PASSWORD"\n')
    assert load(path, {}, resolves=False).settings.storage.url == "env:DATABASE_URL"
    assert "DATABASE_URL is not set" in problems_of(path)["storage.url"].message


@pytest.mark.parametrize(
    ("text", "key", "message", "hint"),
    [
        ('url = "mysql://db/gatehouse"', "url", "must start with", "postgresql://"),
        ('url = "gatehouse.db"', "url", "must start with", "sqlite:///"),
        ('url = "postgresql+psycopg://db/gatehouse"', "url", "must not name a driver", '"postgresql:"'),
        ('url = "files:/srv/x"', "url", "has a path", "gateway.data_dir"),
        ('url = "sqlite://"', "url", "has no path", "sqlite:///"),
        ('url = "sqlite:"', "url", "has no path", "sqlite:///"),
        ('url = "sqlite:///"', "url", "has no path", "sqlite:///"),
        ('url = "sqlite:///srv/chat/"', "url", "has no path", "sqlite:///"),
        ('url = "sqlite://srv/chat.db"', "url", "names a host", "sqlite:///"),
        ('url = "sqlite:///chat.db"', "url", "root folder", "sqlite:gatehouse.db"),
        ('url = "sqlite:///:memory:"', "url", "in memory", "sqlite:///"),
        ('url = "sqlite:chat.db?mode=ro"', "url", "has options", "sqlite:///"),
        ('url = "postgresql://db.example.org"', "url", "names no database", "postgresql://"),
        ('url = "postgresql:gatehouse"', "url", "is not a URL", "postgresql://"),
        ('url = "postgresql://db/x?sslpassword=y"', "url", "sslpassword", "without a passphrase"),
        ("url = 1", "url", "must be text", "files:"),
        ("mirror = true", "mirror", "must be false", "storage.url"),
        ('password = "secret"', "password", "PostgreSQL only", "storage.url"),
        ('url = "sqlite:x.db"\npassword = "secret"', "password", "PostgreSQL only", "storage.url"),
        ('url = "postgresql://a:b@c/d"\npassword = "secret"', "password", "contains a password", "remove"),
        ('migrate = "always"', "migrate", "must be 'auto' or 'manual'", ""),
        ("lock_timeout = -1", "lock_timeout", "must be at least 0", ""),
        ("connect_timeout = 0", "connect_timeout", "must be at least 1", ""),
        ("pool = 1", "pool", "is not a known key", "known keys"),
    ],
)
def test_each_mistake_is_reported_with_a_hint(tmp_path: Path, text: str, key: str, message: str, hint: str) -> None:
    problem = problems_of(write_config(tmp_path, f"[storage]\n{text}\n"))[f"storage.{key}"]
    assert message in problem.message
    assert hint in problem.hint
    assert "secret" not in str(problem)


@pytest.mark.parametrize("url", [f"mysql://me:{CANARY}@db/x", f"postgresql://me:{CANARY}@db", f"sqlite://{CANARY}/x"])
def test_a_wrong_url_is_not_quoted(tmp_path: Path, url: str) -> None:
    problems = problems_of(write_config(tmp_path, f'[storage]\nurl = "{url}"\n'))
    assert CANARY not in str(problems)


@pytest.mark.parametrize(
    ("folder", "owner"),
    [
        ("repo", "repos[0].path"),
        ("repo/inside", "repos[0].path"),
        ("link", "repos[0].path"),
        ("home", "agents.coder.sandbox.home"),
        ("data/workspace", "gateway.workspace_root"),
    ],
)
def test_tools_must_not_reach_the_database(tmp_path: Path, folder: str, owner: str) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "link").symlink_to("repo")
    text = (
        f'[storage]\nurl = "sqlite:{folder}/gatehouse.db"\n[gateway]\ndata_dir = "data"\n'
        '[[repos]]\nid = "website"\npath = "repo"\n'
        '[agents.coder]\nbackend = "acp"\npreset = "gemini"\nsandbox.home = "home"\n'
    )
    problem = problems_of(write_config(tmp_path, text))["storage.url"]
    assert f"inside {owner}" in problem.message


@pytest.mark.parametrize("name", ["spool.db", "spool.db-wal", "gatehouse.lock", "sessions/index.json"])
def test_the_database_is_no_other_file_of_the_gateway(tmp_path: Path, name: str) -> None:
    text = f'[storage]\nurl = "sqlite:data/{name}"\n[gateway]\ndata_dir = "data"\n'
    assert "something else" in problems_of(write_config(tmp_path, text))["storage.url"].message


def test_the_database_may_lie_in_the_data_directory(tmp_path: Path) -> None:
    text = '[storage]\nurl = "sqlite:data/gatehouse.db"\nmirror = true\n[gateway]\ndata_dir = "data"\n'
    assert load(write_config(tmp_path, text), {}).settings.storage.mirror


def test_another_storage_needs_a_restart() -> None:
    old = Settings.model_validate({"gateway": {"data_dir": "/data"}})
    url = "postgresql://me:x@db/gatehouse"
    new = Settings.model_validate({"gateway": {"data_dir": "/data"}, "storage": {"url": url, "lock_timeout": 3}})
    plan = plan_reload(old, new)
    assert plan.restart_needed == ("storage.lock_timeout", "storage.password", "storage.url")
    assert plan.settings.storage == old.storage

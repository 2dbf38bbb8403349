"""`gatehouse db`: the schema of the database."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from gateway.database.migrate import BASE, HEAD
from tests.daemon_process import DEFAULTS, gatehouse, running, write_config

CANARY = "canary-5f1c9e7a"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/gatehouse.db"
    database_url: str = request.getfixturevalue("database_url")
    return database_url


def test_the_database_of_the_settings_is_migrated_and_checked(tmp_path: Path, url: str) -> None:
    write_config(tmp_path, f'{DEFAULTS}\n[storage]\nurl = "{url}"\n')

    def run(*words: str) -> tuple[int, str]:
        done = gatehouse("db", *words, home=tmp_path)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    assert "no tables yet" in run("current")[1]
    assert run("check")[0] == 1
    assert run("upgrade") == (0, f"Created the tables of schema {HEAD}.\n")
    assert run("upgrade") == (0, f"The database already has schema {HEAD}.\n")
    assert run("current") == (0, f"The database has schema {HEAD}, the newest.\n")
    code, answer = run("check")
    assert code == 0
    assert "as they should be" in answer
    code, answer = run("downgrade", BASE)
    assert code == 1
    assert "deletes all sessions" in answer
    code, answer = run("downgrade", BASE, "--sql")
    assert code == 0
    assert "DROP TABLE session" in answer
    assert run("downgrade", BASE, "--yes") == (0, f"Migrated the database from schema {HEAD} back to {BASE}.\n")
    assert "nothing to do" in run("downgrade", BASE, "--yes")[1]
    code, answer = run("upgrade", "--sql")
    assert code == 0
    assert "CREATE VIEW AgentMessage" in answer
    assert "no tables yet" in run("current")[1]


def test_another_database_can_be_named(tmp_path: Path) -> None:
    write_config(tmp_path)
    refused = gatehouse("db", "upgrade", home=tmp_path)
    assert refused.returncode == 1
    assert "there is no database" in refused.stderr
    url = f"sqlite:{tmp_path}/other.db"
    assert gatehouse("db", "upgrade", "--url", url, home=tmp_path).returncode == 0
    with closing(sqlite3.connect(tmp_path / "other.db")) as file:
        file.execute("DROP VIEW AgentMessage")
    checked = gatehouse("db", "check", "--url", url, home=tmp_path)
    assert checked.returncode == 1
    assert "The view AgentMessage is missing." in checked.stdout


def test_the_database_of_a_running_gateway_is_not_migrated(tmp_path: Path, database_url: str) -> None:
    assert gatehouse("db", "upgrade", "--url", database_url, home=tmp_path).returncode == 0
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("INSERT INTO writer (id, boot, holder) VALUES (1, 'b', 'another machine')")
        refused = gatehouse("db", "downgrade", BASE, "--yes", "--url", database_url, home=tmp_path)
        assert refused.returncode == 1
        assert "in use by a gateway: another machine" in refused.stderr
    write_config(tmp_path)
    with running(tmp_path):
        write_config(tmp_path, f'{DEFAULTS}\n[storage]\nurl = "{database_url}"\n')
        refused = gatehouse("db", "downgrade", BASE, "--yes", home=tmp_path)
        assert "A gateway is running" in refused.stderr


def test_the_file_of_a_running_gateway_is_not_migrated(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/database/gatehouse.db"
    with running(tmp_path, f'{DEFAULTS}\n[storage]\nurl = "{url}"\n'):
        refused = gatehouse("db", "downgrade", BASE, "--yes", "--url", url, home=tmp_path)
        assert refused.returncode == 1
        assert "in use by process" in refused.stderr
        checked = gatehouse("db", "check", home=tmp_path)
        assert checked.returncode == 0, checked.stdout
    assert gatehouse("db", "downgrade", BASE, "--yes", home=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("url", "code"), [(f"mysql://me:{CANARY}@db/x", 78), (f"postgresql://me:{CANARY}@127.0.0.1:1/x", 1)]
)
def test_no_message_contains_the_password(tmp_path: Path, url: str, code: int) -> None:
    write_config(tmp_path, f'{DEFAULTS}\n[storage]\nurl = "{url}"\n')
    for words in (("db", "current"), ("db", "upgrade"), ("db", "current", "--url", url), ("config", "show")):
        done = gatehouse(*words, home=tmp_path)
        assert done.returncode == (code if words[0] == "db" else done.returncode)
        assert CANARY not in done.stdout + done.stderr


def test_an_unknown_schema_is_wrong_usage(tmp_path: Path) -> None:
    write_config(tmp_path)
    refused = gatehouse("db", "downgrade", "0999", home=tmp_path)
    assert refused.returncode == 2
    assert "not a schema that this version knows" in refused.stderr

"""The checks of `gatehouse doctor` for databases, with real ones."""

import sys
from pathlib import Path

import pytest

from config import Loaded, Settings, StorageSettings
from gateway.database.migrate import ensure_current
from gateway.doctor.configuration import check_config
from gateway.doctor.database import check_database
from gateway.doctor.finding import Finding, Level
from tests.postgres.fixtures import NewPostgres


def migrated(url: str) -> StorageSettings:
    storage = StorageSettings.model_validate({"url": url})
    ensure_current(storage)
    return storage


def problems(findings: list[Finding]) -> list[tuple[Level, str]]:
    return [(each.level, each.message) for each in findings if each.level is not Level.OK]


def test_a_sound_sqlite_file_is_described(tmp_path: Path) -> None:
    storage = migrated(f"sqlite://{tmp_path}/gatehouse.db")
    (finding,) = check_database(storage)
    assert finding.level is Level.OK
    assert f"{tmp_path}/gatehouse.db, schema " in finding.message


def test_a_damaged_sqlite_file_is_an_error(tmp_path: Path) -> None:
    storage = migrated(f"sqlite://{tmp_path}/gatehouse.db")
    with storage.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)
    assert [level for level, _ in problems(check_database(storage))] == [Level.ERROR]


def test_a_file_or_database_without_tables_is_no_problem(tmp_path: Path, database_url: str) -> None:
    for url in (f"sqlite://{tmp_path}/gatehouse.db", database_url):
        assert not problems(check_database(StorageSettings.model_validate({"url": url})))


def test_a_missing_library_does_not_end_the_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    tables = {"gateway": {"data_dir": tmp_path}, "storage": {"url": "postgresql:///x?host=/nowhere"}}
    settings = Settings.model_validate(tables)
    report = check_config(lambda: Loaded(settings=settings, path=None, warnings=()), is_running=True)
    assert "needs an extra that is not installed" in " ".join(problem.message for problem in report.problems)


def test_a_sound_server_is_described_without_a_password(database_url: str) -> None:
    storage = migrated(f"{database_url}&password=hunter2")
    findings = check_database(storage)
    assert not problems(findings)
    text = " ".join(finding.message for finding in findings)
    assert "PostgreSQL " in text
    assert "synchronous_commit on" in text
    assert "A commit takes " in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("setting", "value", "level"),
    [
        ("fsync", "off", Level.ERROR),
        ("full_page_writes", "off", Level.WARNING),
        ("synchronous_commit", "off", Level.ERROR),
        ("default_transaction_read_only", "on", Level.ERROR),
    ],
)
def test_settings_that_lose_messages_are_reported(
    new_postgres: NewPostgres, setting: str, value: str, level: Level
) -> None:
    server = new_postgres()
    storage = migrated(server.url())
    server.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
    server.restart()
    found = problems(check_database(storage))
    assert [each for each, _ in found] == [level]
    assert setting in found[0][1]


def test_asynchronous_standbys_are_reported(new_postgres: NewPostgres) -> None:
    primary = new_postgres()
    storage = migrated(primary.url())
    assert not problems(check_database(storage))
    new_postgres(primary=primary)
    (found,) = problems(check_database(storage))
    assert found[0] is Level.WARNING
    assert "asynchronous" in found[1]
    primary.configure("synchronous_standby_names", "*")
    assert not problems(check_database(storage))


def test_a_server_that_is_down_is_an_error(new_postgres: NewPostgres) -> None:
    server = new_postgres()
    storage = migrated(server.url())
    server.stop()
    assert [level for level, _ in problems(check_database(storage))] == [Level.ERROR]

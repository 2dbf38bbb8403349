"""The keys of [files] that say where the nodes of a cluster share files."""

from pathlib import Path

import pytest

from config import FileSharing, Settings, load, plan_reload, show
from tests.config.harness import CANARY, problems_of, write_config

BUCKET = f"""
[files]
shared = "s3"
s3_endpoint = "https://s3.example.org"
s3_bucket = "gatehouse-files"
s3_access_key = "AKIAEXAMPLE"
s3_secret_key = "{CANARY}"
s3_prefix = "/gatehouse/files/"
"""


def test_files_are_not_shared_by_default(tmp_path: Path) -> None:
    files = load(None, {"HOME": str(tmp_path)}).settings.files
    assert (files.shared, files.max_database_bytes) == (FileSharing.NONE, 20_000_000)


def test_a_bucket_with_its_key(tmp_path: Path) -> None:
    settings = load(write_config(tmp_path, BUCKET), {}).settings
    files = settings.files
    assert (files.shared, files.s3_bucket, files.s3_prefix) == (FileSharing.S3, "gatehouse-files", "gatehouse/files")
    assert files.s3_secret_key is not None
    assert files.s3_secret_key.reveal() == CANARY
    assert CANARY not in show(settings) + repr(settings)


def test_a_bucket_needs_its_name_and_its_key(tmp_path: Path) -> None:
    problems = problems_of(write_config(tmp_path, '[files]\nshared = "s3"\n'))
    assert sorted(problems) == ["files.s3_access_key", "files.s3_bucket", "files.s3_secret_key"]
    assert {problem.message for problem in problems.values()} == {'is required, because files.shared is "s3"'}


@pytest.mark.parametrize("url", ["files:", "sqlite:///srv/gatehouse/gatehouse.db", None])
def test_only_postgresql_shares_files(tmp_path: Path, url: str | None) -> None:
    storage = f'[storage]\nurl = "{url}"\n' if url else ""
    problems = problems_of(write_config(tmp_path, f'{storage}[files]\nshared = "database"\n'))
    assert problems["files.shared"].message == '"database" needs PostgreSQL, and storage.url names no such database'


@pytest.mark.parametrize("url", ["postgresql://gatehouse@db/gatehouse", "env:DATABASE_URL"])
def test_a_postgresql_database_shares_files(tmp_path: Path, url: str) -> None:
    path = write_config(tmp_path, f'[storage]\nurl = "{url}"\n[files]\nshared = "database"\n')
    loaded = load(path, {"DATABASE_URL": "postgresql://gatehouse@db/gatehouse"})
    assert loaded.settings.files.shared is FileSharing.DATABASE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("s3_bucket", "https://s3.example.org/files"),
        ("s3_bucket", "Files"),
        ("s3_prefix", "../files"),
        ("s3_prefix", "a//b"),
        ("s3_endpoint", "s3.example.org"),
        ("shared", "disk"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, key: str, value: str) -> None:
    assert list(problems_of(write_config(tmp_path, f'[files]\n{key} = "{value}"\n'))) == [f"files.{key}"]


def test_another_storage_needs_a_restart_and_other_limits_do_not() -> None:
    old = Settings.model_validate({"storage": {"url": "postgresql://db/gatehouse"}})
    files = {"shared": "database", "max_database_bytes": 5, "max_bytes": 7}
    new = Settings.model_validate({"storage": {"url": "postgresql://db/gatehouse"}, "files": files})
    plan = plan_reload(old, new)
    assert plan.restart_needed == ("files.max_database_bytes", "files.shared")
    assert plan.applied == ("files.max_bytes",)
    assert (plan.settings.files.shared, plan.settings.files.max_bytes) == (FileSharing.NONE, 7)

"""`gatehouse migrate`: from one storage engine to another and back, with processes that are killed."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from config import Settings
from tests.daemon_process import DEFAULTS, TIMEOUT, environment, gatehouse, running, write_config
from tests.storage_copy.harness import contents, fill, settings


def prepared(home: Path, url: str = "files:") -> Settings:
    """Write a configuration, and return the settings of its storage."""
    write_config(home, f'{DEFAULTS}\n[storage]\nurl = "{url}"\n')
    return settings(home / "data", url)


async def test_sessions_move_to_a_database_and_back(tmp_path: Path, database_url: str) -> None:
    old = prepared(tmp_path)
    await fill(old)
    before = contents(old)
    moved = gatehouse("migrate", "--to", database_url, home=tmp_path)
    assert moved.returncode == 0, moved.stderr
    assert "Copied 4 sessions and 2 archived sessions" in moved.stdout
    assert f"gatehouse config set storage.url '{database_url}'" in moved.stdout
    assert gatehouse("config", "set", "storage.url", database_url, home=tmp_path).returncode == 0
    new = settings(old.gateway.data_dir, database_url)
    assert contents(new) == before
    refused = gatehouse("migrate", "--to", "files:", home=tmp_path)
    assert refused.returncode == 1
    assert "--replace" in refused.stderr
    back = gatehouse("migrate", "--to", "files:", "--replace", "--switch", "--json", home=tmp_path)
    assert back.returncode == 0, back.stderr
    report = json.loads(back.stdout)
    assert (report["sessions"], report["archived"], report["switched"]) == (4, 2, True)
    assert contents(old) == before
    assert 'url = "files:"' in gatehouse("config", "show", home=tmp_path).stdout


_KILL = """
import os, sys
import gateway.cli
from gateway.storage_copy import database

commit, left = database.PostgresTarget.commit, int(sys.argv.pop(1))

def commit_and_die(target):
    global left
    commit(target)
    left -= 1
    if not left:
        os.kill(os.getpid(), 9)

database.PostgresTarget.commit = commit_and_die
sys.exit(gateway.cli.main(sys.argv[1:]))
"""


def killed_after_commits(count: int, home: Path, url: str) -> int:
    command = [sys.executable, "-c", _KILL, str(count), "migrate", "--to", url]
    return subprocess.run(command, cwd=home, env=environment(home), timeout=TIMEOUT, check=False).returncode


async def test_migration_that_is_killed_goes_on(tmp_path: Path, database_url: str) -> None:
    old = prepared(tmp_path)
    await fill(old)
    assert killed_after_commits(2, tmp_path, database_url) == -signal.SIGKILL
    again = gatehouse("migrate", "--to", database_url, "--json", home=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["resumed"] == 6
    assert contents(settings(old.gateway.data_dir, database_url)) == contents(old)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--to", "files:"], "is the present storage already"),
        (["--to", "sqlite:x.db", "--replace"], "files: only"),
        (["--to", "mysql://x"], "must start with"),
        (["--to", "postgresql:///x?host=/nowhere"], "can't be reached"),
    ],
)
def test_wrong_targets_are_refused(words: list[str], reason: str, tmp_path: Path) -> None:
    prepared(tmp_path)
    refused = gatehouse("migrate", *words, home=tmp_path)
    assert refused.returncode in {1, 78}
    assert reason in refused.stderr
    assert "Traceback" not in refused.stderr


def test_running_gateway_is_not_disturbed(tmp_path: Path) -> None:
    with running(tmp_path):
        refused = gatehouse("migrate", "--to", f"sqlite://{tmp_path}/x/chat.db", home=tmp_path)
    assert refused.returncode == 78
    assert "in use" in refused.stderr
    assert not (tmp_path / "x").exists()

"""Data of a version that does not exist yet: this one refuses it before it changes anything, or leaves it alone."""

import asyncio
import gzip
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from config import load
from gateway.spool import schema
from tests.channels.telegram.bot_api import TEST_TIMEOUT, bot_api
from tests.channels.telegram.harness import gateway
from tests.daemon_process import gatehouse
from tests.upgrade.harness import NEWEST, contents, moved, released

KNOWN = len(schema.MIGRATIONS)
"""The newest format of the spool."""


def _spool(config: Path) -> None:
    with closing(sqlite3.connect(config.parent / "data/spool.db")) as spool:
        spool.execute(f"PRAGMA user_version = {KNOWN + 1}")


def _database(config: Path) -> None:
    storage = moved(config, f"sqlite://{config.parent}/data/gatehouse.db")
    with closing(sqlite3.connect(storage.path)) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '0099'")
        database.execute("UPDATE compatibility SET oldest = '0098', version = '9.0.0'")


def _config(config: Path) -> None:
    config.write_text(config.read_text() + "\n[telepathy]\nenabled = true\n")


@pytest.mark.parametrize(
    ("make_newer", "words"),
    [
        (_spool, f"was written by a newer Gatehouse (its format is {KNOWN + 1}, this version knows {KNOWN})"),
        (_database, "was migrated by Gatehouse 9.0.0 (schema 0099)"),
        (_config, "telepathy"),
    ],
)
def test_a_start_with_newer_data_is_refused(make_newer: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    config = released(NEWEST, tmp_path)
    make_newer(config)
    before = contents(tmp_path / "data")
    done = gatehouse("run", home=tmp_path)
    assert done.returncode == 78
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(tmp_path / "data") == before


async def test_newer_files_are_left_alone_or_built_again(tmp_path: Path) -> None:
    config = released(NEWEST, tmp_path, model_url="")
    sessions = tmp_path / "data/sessions"
    transcript = next((sessions / "transcripts").glob("*direct-42-4-*"))
    transcript.write_bytes(transcript.read_bytes().replace(b'"version":', b'"version":9', 1))
    index = sessions / "index.json"
    index.write_bytes(index.read_bytes().replace(b'"version":', b'"version":9', 1))
    (archived,) = (sessions / "archive").glob("*/*.gz")
    archived.write_bytes(gzip.compress(b'{"version":99}') + archived.read_bytes())
    for path in sessions.glob("search.db-*"):
        path.unlink()
    with closing(sqlite3.connect(sessions / "search.db")) as search:
        search.execute("PRAGMA user_version = 99")
    kept = {path: path.read_bytes() for path in (transcript, archived)}
    async with asyncio.timeout(TEST_TIMEOUT), bot_api(first_update=10_000) as api:
        text = config.read_text().replace('http://127.0.0.1:9"\nallow', f'{api.url}"\nallow')
        config.write_text(text)
        async with gateway(load(config, {}).settings) as daemon:
            scope = "agent:main:telegram:direct:42"
            assert {meta.number for meta in daemon.sessions.list(scope)} >= {2, 3, 5}
            assert daemon.sessions.next_number(scope) == 6
            await api.say("what is my name")
            number = 1
            while "Ada Kitchen" not in (await api.called("sendMessage", times=number)).fields["text"]:
                number += 1
    assert {path: path.read_bytes() for path in kept} == kept
    assert b'"version":9' not in index.read_bytes()[:20]

import asyncio
import json
import os
import signal
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from aiohttp import web

from config import load
from gateway.data_dir import REHEARSAL, DataDirLock
from gateway.database import migrate
from gateway.errors import Refused
from gateway.spool import schema
from gateway.upgrade.data_copy import RESERVE, require_room
from gateway.upgrade.rehearsal import STEPS, StepState
from tests.channels.telegram.bot_api import TEST_TIMEOUT, bot_api
from tests.daemon_process import COMMAND, DaemonProcess, gatehouse
from tests.postgres.fixtures import NewPgBouncer
from tests.postgres.server import PostgresServer
from tests.upgrade.harness import NEWEST, contents, failure, moved, rehearse, released
from tests.versions import story
from tests.versions.fixture import versions


@pytest.mark.parametrize("version", versions())
async def test_data_of_each_release_passes_and_stays_as_it_is(version: str, tmp_path: Path) -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=500)

    model = web.Application()
    model.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(model)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with bot_api() as api:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            config = released(version, tmp_path, api_base=api.url, model_url=url)
            before = contents(tmp_path)
            report = await rehearse(config)
            assert [(step.name, step.state) for step in report.steps] == [(name, StepState.OK) for name in STEPS]
            assert contents(tmp_path) == before
            # Neither a platform nor a model has heard of it.
            assert api.calls == []
            assert asked == []
    finally:
        await runner.cleanup()


def test_the_command_reports_each_step(tmp_path: Path) -> None:
    released("0.1.0-1f41871", tmp_path)
    done = gatehouse("upgrade", "--check", home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Migrated spool format 4 to {len(schema.MIGRATIONS)}." in done.stdout
    assert "Read 9 sessions" in done.stdout
    assert done.stdout.endswith("works with your data. Nothing was changed.\n")

    (tmp_path / "data/spool.db").write_bytes(b"rubbish" * 1_000)
    done = gatehouse("upgrade", "--check", "--json", home=tmp_path)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["ok"] is False
    assert [step["state"] for step in report["steps"][:3]] == ["ok", "failed", "skipped"]


def test_data_of_a_running_gateway_passes(tmp_path: Path) -> None:
    """The gateway goes on meanwhile. Its secrets are not known to the shell of the command."""
    config = released(NEWEST, tmp_path)
    config.write_text(config.read_text().replace("[channels.telegram]\ntoken = ", "[channels.telegram]\n# "))
    config.write_text(config.read_text() + 'token = "env:BOT_TOKEN"\n')
    with DaemonProcess(tmp_path, {"BOT_TOKEN": story.TOKEN}) as daemon:
        daemon.ready()
        done = gatehouse("upgrade", "--check", home=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "These secrets are not known here, so no channel was opened: channels.telegram.token." in done.stdout
        assert "Copied the data of the running gateway." in done.stdout
        said = gatehouse("chat", "--once", "what is my name", home=tmp_path)
        assert "Tess" in said.stdout
        assert not list((tmp_path / "data").glob(".*"))


@pytest.mark.parametrize("revision", ["0001", "0004", migrate.HEAD])
async def test_a_sqlite_database_is_migrated_as_a_copy(revision: str, tmp_path: Path) -> None:
    config = released(NEWEST, tmp_path)
    storage = moved(config, f"sqlite://{tmp_path}/data/gatehouse.db")
    if revision != migrate.HEAD:
        migrate.downgrade(storage, revision)
    before = contents(tmp_path)
    report = await rehearse(config)
    assert report.is_ok, report.steps
    assert report.found == f"schema {revision}"
    assert contents(tmp_path) == before


def test_a_sqlite_database_in_use_is_copied(tmp_path: Path) -> None:
    config = released(NEWEST, tmp_path)
    moved(config, f"sqlite://{tmp_path}/data/gatehouse.db")
    with DaemonProcess(tmp_path) as daemon:
        daemon.ready()
        done = gatehouse("upgrade", "--check", home=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Nothing to migrate (schema" in done.stdout


@pytest.mark.parametrize("revision", ["0001", "0004", migrate.HEAD])
async def test_a_postgresql_database_is_migrated_as_a_copy(revision: str, tmp_path: Path, database_url: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    config = released(NEWEST, tmp_path)
    storage = moved(config, database_url)
    if revision != migrate.HEAD:
        migrate.downgrade(storage, revision)

    def rows() -> dict[str, int]:
        """Return the schemas, and the number of changes that each table of the original has seen."""
        with psycopg.connect(database_url) as connection:
            found = {name: 0 for (name,) in connection.execute("SELECT nspname FROM pg_namespace")}
            tables = [
                name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname='public'")
            ]
            for table in tables:
                (found[table],) = connection.execute(
                    f"SELECT hashtext(coalesce(string_agg(t::text, ',' ORDER BY t::text), '')) FROM {table} t"  # noqa: S608 - names from the catalog.
                ).fetchone()
            return found

    before = rows()
    report = await rehearse(config)
    assert report.is_ok, report.steps
    assert report.found == f"schema {revision}"
    assert rows() == before
    assert migrate.current(storage) == revision


async def test_a_user_who_may_not_create_a_schema_is_told_how_to_allow_it(tmp_path: Path, database_url: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    config = released(NEWEST, tmp_path)
    moved(config, database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        (user,) = connection.execute("SELECT current_user").fetchone()
    config.write_text(config.read_text().replace(f"//{user}@", "//reader@").replace(f"user={user}", "user=reader"))
    assert "reader" in config.read_text()
    step, reason = failure(await rehearse(config))
    assert step == "data"
    assert "could not be rehearsed" in reason
    assert "GRANT CREATE ON DATABASE" in reason


async def test_a_connection_pool_does_not_lead_to_the_present_tables(
    tmp_path: Path, database_url: str, postgres: PostgresServer, new_pgbouncer: NewPgBouncer
) -> None:
    psycopg = pytest.importorskip("psycopg")
    config = released(NEWEST, tmp_path)
    moved(config, database_url)
    pool = new_pgbouncer(postgres)
    config.write_text(config.read_text().replace(database_url, pool.url(database_url)))
    step, reason = failure(await rehearse(config))
    assert step == "copy"
    assert "Name the server itself in storage.url" in reason
    with psycopg.connect(database_url) as connection:
        left = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ 'rehearsal'").fetchall()
        (sessions,) = connection.execute("SELECT count(*) FROM session").fetchone()
    assert left == []
    assert sessions == 9


async def test_copies_of_killed_rehearsals_in_a_database_are_dropped(tmp_path: Path, database_url: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    config = released(NEWEST, tmp_path)
    moved(config, database_url)
    dead, alive, foreign = (f"{migrate.REHEARSAL_SCHEMA}{name}" for name in ("0" * 32, "1" * 32, "mine"))
    with psycopg.connect(database_url, autocommit=True) as connection:
        for name in (dead, alive, foreign):
            connection.execute(f"CREATE SCHEMA {name}")
        connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 1))", (alive,))
        assert (await rehearse(config)).is_ok
        found = {name for (name,) in connection.execute("SELECT nspname FROM pg_namespace")}
    assert {alive, foreign} <= found
    assert dead not in found


def _newer_spool(data: Path) -> None:
    with closing(sqlite3.connect(data / "spool.db")) as spool:
        spool.execute("PRAGMA user_version = 99")
        spool.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _newer_spool_in_its_log(data: Path) -> None:
    spool = sqlite3.connect(data / "spool.db")
    spool.execute("PRAGMA wal_autocheckpoint = 0")
    spool.execute("PRAGMA user_version = 99")
    copy = (data / "spool.db-wal").read_bytes(), (data / "spool.db").read_bytes()
    spool.close()
    (data / "spool.db-wal").write_bytes(copy[0])
    (data / "spool.db").write_bytes(copy[1])


def _foreign_spool(data: Path) -> None:
    for path in data.glob("spool.db*"):
        path.unlink()
    with closing(sqlite3.connect(data / "spool.db")) as other:
        other.execute("CREATE TABLE songs (title TEXT)")


def _damaged_spool(data: Path) -> None:
    (data / "spool.db").write_bytes(os.urandom(100_000))


def _cut_spool(data: Path) -> None:
    with closing(sqlite3.connect(data / "spool.db")) as spool:
        spool.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = (data / "spool.db").read_bytes()
    (data / "spool.db").write_bytes(content[: len(content) // 2])


def _spool_is_a_folder(data: Path) -> None:
    for path in data.glob("spool.db*"):
        path.unlink()
    (data / "spool.db").mkdir()


def _spool_is_a_pipe(data: Path) -> None:
    (data / "spool.db").unlink()
    os.mkfifo(data / "spool.db")


def _newer_transcript(data: Path) -> None:
    path = next((data / "sessions/transcripts").glob("*direct-77*"))
    path.write_bytes(path.read_bytes().replace(b'"version":', b'"version":9', 1))


def _unfinished_restore(data: Path) -> None:
    (data / ".restoring-x").mkdir()


def _unfinished_copy(data: Path) -> None:
    (data / ".unfinished-copy").write_text("sqlite:/srv/gatehouse.db")


@pytest.mark.parametrize(
    ("harm", "step", "words"),
    [
        (_newer_spool, "data", "written by a newer Gatehouse (its format is 99"),
        (_newer_spool_in_its_log, "migration", "written by a newer Gatehouse (its format is 99"),
        (_foreign_spool, "data", "it is the database of another program"),
        (_damaged_spool, "data", "is damaged"),
        (_cut_spool, "data", "damaged"),
        (_spool_is_a_folder, "data", "not a file"),
        (_spool_is_a_pipe, "data", "not a file"),
        (_newer_transcript, "sessions", "written by a newer Gatehouse (format 9"),
        (_unfinished_restore, "data", "was interrupted"),
        (_unfinished_copy, "data", "is an unfinished copy"),
    ],
)
async def test_bad_data_fails_with_a_sentence_and_stays(harm: object, step: str, words: str, tmp_path: Path) -> None:
    config = released(NEWEST, tmp_path)
    assert callable(harm)
    harm(tmp_path / "data")
    before = contents(tmp_path)
    report = await rehearse(config)
    assert failure(report)[0] == step
    assert words in failure(report)[1]
    assert contents(tmp_path) == before


async def test_damage_that_a_start_survives_is_a_warning(tmp_path: Path) -> None:
    config = released(NEWEST, tmp_path)
    path = next((tmp_path / "data/sessions/transcripts").glob("*direct-77*"))
    path.write_bytes(path.read_bytes() + b"{not json\n")
    report = await rehearse(config)
    assert report.is_ok
    (sessions,) = (step for step in report.steps if step.name == "sessions")
    assert sessions.state is StepState.WARNING
    assert "1 line of transcripts can't be read" in sessions.detail


async def test_an_invalid_configuration_fails_before_anything_else(tmp_path: Path) -> None:
    config = released(NEWEST, tmp_path)
    config.write_text(config.read_text() + "[telepathy]\nenabled = true\n")
    report = await rehearse(config)
    step, reason = failure(report)
    assert step == "configuration"
    assert "telepathy" in reason
    assert {step.state for step in report.steps[1:]} == {StepState.SKIPPED}


async def test_a_missing_data_directory_is_not_made(tmp_path: Path) -> None:
    config = tmp_path / "gatehouse.toml"
    config.write_text(f'[gateway]\ndata_dir = "{tmp_path}/nowhere"\n')
    assert failure(await rehearse(config))[0] == "data"
    assert not (tmp_path / "nowhere").exists()


def test_a_disk_without_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="Make room, or name a folder on another disk with --scratch"):
        require_room(1 << 60, tmp_path)
    assert "needs up to" in require_room(0, tmp_path)
    assert RESERVE > 0


async def test_the_copy_can_be_made_elsewhere(tmp_path: Path) -> None:
    config = released(NEWEST, tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "data").chmod(0o500)  # Root may write all the same.
    assert (await rehearse(config, scratch=scratch)).is_ok
    assert list(scratch.iterdir()) == []


_COPY = """
import asyncio, sys
from pathlib import Path
from config import load
from gateway.upgrade.data_copy import copied_data, find_data

async def main():
    settings = load(Path(sys.argv[1]), {}).settings
    data = find_data(settings)
    async with copied_data(settings, data, settings.gateway.data_dir):
        print("copied", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_the_copy_of_a_killed_rehearsal_is_deleted_later(tmp_path: Path) -> None:
    config = released(NEWEST, tmp_path)
    before = contents(tmp_path)
    copying = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _COPY, str(config), stdout=asyncio.subprocess.PIPE
    )
    assert copying.stdout is not None
    async with asyncio.timeout(TEST_TIMEOUT):
        assert await copying.stdout.readline() == b"copied\n"
    (copy,) = (tmp_path / "data").glob(f"{REHEARSAL}*")
    # One that is alive keeps its copy.
    assert (await rehearse(config)).is_ok
    assert copy.exists()
    copying.send_signal(signal.SIGKILL)
    await copying.wait()
    assert {name: digest for name, digest in contents(tmp_path).items() if REHEARSAL not in name} == before
    report = await rehearse(config)
    assert "Deleted the copy of 1 interrupted rehearsal." in next(
        step.detail for step in report.steps if step.name == "space"
    )
    assert contents(tmp_path) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_rehearsal_deletes_its_copy(number: signal.Signals, tmp_path: Path) -> None:
    config = released(NEWEST, tmp_path)
    before = contents(tmp_path)
    running = await asyncio.create_subprocess_exec(
        COMMAND, "--config", config, "upgrade", "--check", stdout=asyncio.subprocess.PIPE
    )
    assert running.stdout is not None
    async with asyncio.timeout(TEST_TIMEOUT):
        while b" copy " not in await running.stdout.readline():
            pass
        # Most of its work is still to come. Should it be that fast, it has deleted its copy as well.
        with suppress(ProcessLookupError):
            running.send_signal(number)
        await running.communicate()
    assert running.returncode in {0, 130}
    assert contents(tmp_path) == before


async def test_a_start_deletes_the_copy_of_a_killed_rehearsal(tmp_path: Path) -> None:
    data = tmp_path / "data"
    released(NEWEST, tmp_path)
    left, alive = data / f"{REHEARSAL}left", data / f"{REHEARSAL}alive"
    left.mkdir()
    (left / "spool.db").touch()
    alive.mkdir()
    with DataDirLock(alive), DaemonProcess(tmp_path) as daemon:
        daemon.ready()
        assert daemon.wait_for("rehearsal_deleted")["folder"] == str(left)
        assert not left.exists()
        assert alive.exists()


def test_without_check_it_prints_the_commands_for_this_installation(tmp_path: Path) -> None:
    config = released(NEWEST, tmp_path)
    done = gatehouse("upgrade", home=tmp_path)
    assert done.returncode == 0
    assert f"gatehouse-next/bin/gatehouse --config {config} upgrade --check" in done.stdout
    assert "backup" in done.stdout
    assert load(config, {}).settings.gateway.data_dir == tmp_path / "data"
    refused = gatehouse("upgrade", "--json", home=tmp_path)
    assert refused.returncode == 2
    assert "--json and --scratch belong to --check" in refused.stderr

"""The whole daemon with each storage engine, as a process: chats, commands of the command line, restarts."""

import json
import re
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from urllib.request import Request, urlopen

import psycopg
import pytest

from gateway.database.migrate import LOCK
from tests.daemon_process import (
    COMMAND,
    DEFAULTS,
    TIMEOUT,
    DaemonProcess,
    environment,
    gatehouse,
    running,
    write_config,
)
from tests.forks.process import Forked
from tests.polling import until
from tests.postgres.fixtures import NewPostgres
from tests.postgres.server import PostgresServer
from tests.sessions.engines import ENGINES, storage_url

SCOPE = "agent:main:terminal:direct:root"
CANNOT_START, SPOOL_BROKEN = 78, 70

NewHome = Callable[[str], tuple[Path, str]]
"""Returns a home folder for a daemon with that engine, and its configuration, which is written there too."""


@pytest.fixture
def new_home(tmp_path: Path, request: pytest.FixtureRequest) -> NewHome:
    def create(engine: str) -> tuple[Path, str]:
        home = tmp_path / engine
        home.mkdir()
        url = storage_url(engine, home / "data", partial(request.getfixturevalue, "database_url"))
        config = f'{DEFAULTS}\n[session]\nbacklog_limit = 1\n[storage]\nurl = "{url}"\n'
        write_config(home, config)
        return home, config

    return create


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def run(home: Path, *arguments: str) -> str:
    """Run a command that must succeed, and return its output."""
    done = gatehouse(*arguments, home=home)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    assert not done.stderr, (arguments, done.stderr)
    return done.stdout


def problems(daemon: DaemonProcess) -> list[object]:
    return [line for line in daemon.log if line["level"] not in {"debug", "info"}]


def test_sessions_are_the_same_for_people_with_each_engine(new_home: NewHome, engine: str) -> None:
    home, config = new_home(engine)
    chat = partial(run, home, "chat", "--once")
    with running(home, config) as daemon:
        chat("my name is Ada")
        assert "Started session 2: Trip" in chat("/new Trip")
        chat("the ferry leaves at nine")
        listed = chat("/session list")
        assert re.search(r"▸ 2  Trip · open · 2 messages.*\n  1  my name is Ada · open · 2 messages", listed)
        assert "the ferry leaves at nine" in chat("/session search ferry")
        assert "Back in session 1" in chat("/session resume 1")
        assert "Ada" in chat("what is my name")
        assert "Reminder 1 is set" in chat("remind me in 5 hours to turn off the oven")
        assert daemon.stop() == 0
    assert not problems(daemon)
    with running(home, config) as daemon:
        assert "Ada" in chat("what is my name")
        assert "turn off the oven" in chat("/reminders")
        assert "Session 2 is deleted" in chat("/session delete 2 yes")
        assert "Trip" not in chat("/session list")
        assert "Nothing found" in chat("/session search ferry")
        assert "Started session 3" in chat("/new")
        daemon.kill()
    with running(home, config) as daemon:
        assert "turn off the oven" in chat("/reminders")
        assert "Back in session 1" in chat("/session resume 1")
        assert "Ada" in chat("what is my name")
        assert daemon.stop() == 0
    assert not problems(daemon)


def test_old_sessions_are_archived_and_restored_with_each_engine(new_home: NewHome, engine: str) -> None:
    home, config = new_home(engine)
    chat = partial(run, home, "chat", "--once")
    with running(home, config) as daemon:
        chat("my name is Ada")
        for _ in range(2):
            chat("/new")
            chat("hello")
        assert "my name is Ada" in run(home, "sessions", "list", "--archived")
        assert "my name is Ada" not in run(home, "sessions", "list")
        assert daemon.stop() == 0
    assert "my name is Ada" in run(home, "sessions", "list", "--archived")
    assert "Restored" in run(home, "sessions", "restore", SCOPE, "1")
    assert "my name is Ada" in run(home, "sessions", "show", SCOPE, "1")
    with running(home, config) as daemon:
        assert "Back in session 1" in chat("/session resume 1")
        assert "Ada" in chat("what is my name")
    assert not problems(daemon)


def test_commands_work_on_a_stopped_daemon_with_each_engine(new_home: NewHome, engine: str) -> None:
    home, config = new_home(engine)
    assert run(home, "sessions", "list") == "No sessions yet.\n"
    assert "There are no API tokens" in run(home, "token", "list")
    assert "gh_" in run(home, "token", "create", "ci", "--scope", "read")
    assert "No one is waiting" in run(home, "pair")
    with running(home, config) as daemon:
        run(home, "chat", "--once", "my name is Ada")
        assert [each["name"] for each in json.loads(run(home, "token", "--json"))["tokens"]] == ["ci"]
        assert daemon.stop() == 0
    assert run(home, "spool") == "inbox: empty\noutbox: empty\n"
    assert "my name is Ada" in run(home, "sessions", "list")
    assert "my name is Ada" in run(home, "sessions", "show", SCOPE, "1")
    assert "No problems found" in run(home, "sessions", "verify")
    assert "0 errors" not in run(home, "doctor", "--local")
    run(home, "sessions", "delete", SCOPE, "1", "--yes")
    assert run(home, "sessions", "list") == "No sessions yet.\n"


async def test_a_session_can_be_followed_with_each_engine(new_home: NewHome, engine: str) -> None:
    home, config = new_home(engine)
    with running(home, config), (home / "followed").open("w+") as output:
        run(home, "chat", "--once", "my name is Ada")
        command = [str(COMMAND), "sessions", "show", SCOPE, "1", "--follow"]
        streams = (output.fileno(), output.fileno(), output.fileno())
        follower = Forked(command, cwd=home, env=environment(home), streams=streams)
        await until(lambda: "my name is Ada" in (home / "followed").read_text())
        run(home, "chat", "--once", "what is my name")
        await until(lambda: "You told me that your name is" in (home / "followed").read_text())
        follower.send_signal(signal.SIGINT)
        follower.wait(30)
    assert (home / "followed").read_text().count("what is my name\n") == 1


def test_sessions_hidden_by_new_settings_are_counted_with_each_engine(new_home: NewHome, engine: str) -> None:
    home, config = new_home(engine)
    with running(home, config) as daemon:
        run(home, "chat", "--once", "hello")
        assert daemon.stop() == 0
    write_config(home, config.replace("[session]", '[session]\ndm_scope = "main"'))
    checked = gatehouse("config", "check", home=home)
    assert "1 session is hidden in 1 scope" in checked.stdout + checked.stderr


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"], indirect=True)
def test_status_and_metrics_name_the_database(new_home: NewHome, engine: str) -> None:
    home, config = new_home(engine)
    with running(home, config) as daemon:
        run(home, "chat", "--once", "hello")
        shown = run(home, "status")
        assert f"  {'SQLite' if engine == 'sqlite' else 'PostgreSQL'}: " in shown
        assert re.search(r", schema \d{4}\n  database [\d.]+ .?B: 0 to answer", shown)
        assert re.search(r"  a commit takes [\d.]+ m?s on average, \d+ were slow\n", shown)
        assert "flush" not in shown
        request = Request(f"{daemon.url}/metrics", headers={"Authorization": f"Bearer {daemon.token}"})  # noqa: S310 - loopback
        with urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
            metrics = answer.read().decode()
        assert f'gatehouse_storage_info{{engine="{engine}"}} 1' in metrics
        assert "gatehouse_commit_seconds_total" in metrics
        assert "ok   database: " in run(home, "doctor", "--local")


def without_chance(transcript: str) -> str:
    """Replace ids and times, which differ for each conversation."""
    transcript = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z?", "TIME", transcript)
    return re.sub(r"\b[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\b", "ID", transcript)


def test_engines_write_and_export_the_same_lines(new_home: NewHome) -> None:
    exports: dict[str, str] = {}
    for engine in ENGINES:
        home, config = new_home(engine)
        with running(home, config):
            for text in ("my name is Ada", "what is my name", "/undo", "what time zone \u2028 \U0001f600", "/clear"):
                run(home, "chat", "--once", text)
            exports[engine] = run(home, "sessions", "export", SCOPE, "1")
        if engine != "files":  # A session of another engine keeps every byte.
            (home / "imported.jsonl").write_text(exports["files"].replace(SCOPE, "agent:main:terminal:direct:other"))
            run(home, "sessions", "import", str(home / "imported.jsonl"))
            copy = run(home, "sessions", "export", "agent:main:terminal:direct:other", "1")
            assert copy == (home / "imported.jsonl").read_text()
    assert len(exports["files"].splitlines()) > 10
    assert {engine: without_chance(text) for engine, text in exports.items()} == dict.fromkeys(
        ENGINES, without_chance(exports["files"])
    )


async def test_the_daemon_waits_for_a_database_that_is_starting(tmp_path: Path, new_postgres: NewPostgres) -> None:
    server = new_postgres()
    server.stop()
    write_config(tmp_path, f'{DEFAULTS}\n[storage]\nurl = "{server.url()}"\n')
    with DaemonProcess(tmp_path) as daemon:
        daemon.wait_for("database_awaited")
        server.start()
        daemon.ready()
        run(tmp_path, "chat", "--once", "hello")
        assert daemon.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_ends_the_wait_for_a_database(
    tmp_path: Path, new_postgres: NewPostgres, number: signal.Signals
) -> None:
    server = new_postgres()
    server.stop()
    write_config(tmp_path, f'{DEFAULTS}\n[storage]\nurl = "{server.url()}"\n')
    with DaemonProcess(tmp_path) as daemon:
        daemon.wait_for("database_awaited")
        daemon.signal(number)
        assert daemon.process.wait(TIMEOUT) == 0
    assert daemon.log[-1]["event"] == "start_cancelled"
    assert not daemon.errors()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_does_not_wait_for_a_server_that_does_not_answer(tmp_path: Path, number: signal.Signals) -> None:
    """The connect would take ten minutes, which is longer than this test waits for the exit."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(TIMEOUT)
        url = f"postgresql://gatehouse@127.0.0.1:{silent.getsockname()[1]}/gatehouse"
        write_config(tmp_path, f'{DEFAULTS}\n[storage]\nurl = "{url}"\nconnect_timeout = 600\n')
        with DaemonProcess(tmp_path) as daemon, silent.accept()[0]:
            daemon.signal(number)
            assert daemon.process.wait(TIMEOUT) == 0
    assert daemon.log[-1]["event"] == "start_cancelled"
    assert not daemon.errors()


async def test_a_stop_signal_ends_the_wait_for_another_migration(
    tmp_path: Path, postgres: PostgresServer, database_url: str
) -> None:
    write_config(tmp_path, f'{DEFAULTS}\n[storage]\nurl = "{database_url}"\n')
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(database_url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        with DaemonProcess(tmp_path) as daemon:
            await until(lambda: postgres.execute(waiting, database=database_url) != [(0,)])
            assert daemon.stop() == 0
    assert daemon.log[-1]["event"] == "start_cancelled"
    with running(tmp_path, (tmp_path / "gatehouse.toml").read_text()) as daemon:
        assert daemon.stop() == 0


def test_without_its_database_the_daemon_exits_so_that_systemd_starts_it_again(
    tmp_path: Path, new_postgres: NewPostgres
) -> None:
    server = new_postgres()
    server.stop()
    write_config(tmp_path, f'{DEFAULTS}\n[storage]\nurl = "{server.url()}"\n')
    began = monotonic()
    listed = gatehouse("sessions", "list", home=tmp_path)
    assert monotonic() - began < 10, "a command must not wait"
    stopped = gatehouse("run", home=tmp_path)
    examined = gatehouse("doctor", "--local", home=tmp_path)
    assert examined.returncode == 1
    assert "FAIL database: The database can't be reached" in examined.stdout
    assert "1 error found." in examined.stdout
    for done in (listed, stopped):
        assert done.returncode == 1
        assert "The database can't be reached" in done.stderr
        assert "Is the server of postgres on" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_daemon_that_has_lost_its_lease_exits_with_an_error(
    new_home: NewHome, postgres: PostgresServer, database_url: str
) -> None:
    home, config = new_home("postgresql")
    with running(home, config) as daemon:
        postgres.execute("UPDATE writer SET boot = 'another'", database=database_url)
        assert daemon.process.wait(60) == SPOOL_BROKEN
    assert "Another gateway has taken over the database" in daemon.errors()
    assert "Internal error" not in daemon.errors()


def test_a_second_daemon_on_the_same_database_names_the_first(new_home: NewHome, tmp_path: Path) -> None:
    home, config = new_home("postgresql")
    (tmp_path / "second").mkdir()
    write_config(tmp_path / "second", config)
    with running(home, config) as daemon:
        second = gatehouse("run", home=tmp_path / "second")
        assert second.returncode == CANNOT_START
        assert f"process {daemon.process.pid} on" in second.stderr
        assert str(home / "data") in second.stderr
        assert "Traceback" not in second.stderr
        run(home, "chat", "--once", "still there?")

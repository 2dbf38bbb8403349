"""Broken installations, and what `gatehouse doctor` finds in them."""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.archive import open_local_archive
from gateway.cli import main
from gateway.install.units import ServiceScope, service_paths, shipped_units
from tests.agent.wire import OPENAI, serving
from tests.agent.wire.server import KEY
from tests.channels.telegram.bot_api import TOKEN, bot_api
from tests.daemon.harness import gateway, settings
from tests.daemon_process import DEFAULTS, DaemonProcess, gatehouse, write_config

Break = Callable[[Path], object]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a sound installation."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    (tmp_path / "data").mkdir(mode=0o700)

    async def start_once() -> None:
        async with open_local_archive(settings(tmp_path)):
            pass

    asyncio.run(start_once())
    return tmp_path


def examined(home: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["--config", str(home / "gatehouse.toml"), "doctor", "--json", "--local", *arguments])
    return code, json.loads(capsys.readouterr().out)


def troubles(told: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["about"], each["level"]) for each in told["findings"] if each["level"] != "fine"]


def test_sound_installation_has_no_problems(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = examined(home, capsys)
    assert (code, told["is_well"], [each for each in troubles(told) if each[0] not in {"disk", "clock"}]) == (
        0,
        True,
        [],
    )
    looked_at = {each["about"] for each in told["findings"]}
    assert looked_at >= {
        "version",
        "config",
        "port",
        "permissions",
        "disk",
        "fsync",
        "clock",
        "sessions",
        "spool",
        "service",
    }


def open_to_others(home: Path) -> None:
    (home / "data/memory").mkdir()
    (home / "data/memory").chmod(0o755)  # Independent of the umask.


def secret_in_the_open(home: Path) -> None:
    write_config(home, DEFAULTS + 'token = "a-token-of-many-letters"\n').chmod(0o644)


def mistyped_key(home: Path) -> None:
    write_config(home, DEFAULTS + "prot = 1\n")


def unknown_secret(home: Path) -> None:
    write_config(home, DEFAULTS + 'token = "env:NOT_SET_ANYWHERE"\n')


def channel_without_token(home: Path) -> None:
    write_config(home, DEFAULTS + "[channels.telegram]\n")


def damaged_transcript(home: Path) -> None:
    (home / "data/sessions/transcripts/lost.jsonl").touch(mode=0o600)
    (home / "data/sessions/transcripts/lost.jsonl").write_text("no json\n")


def damaged_index(home: Path) -> None:
    (home / "data/sessions/index.json").touch(mode=0o600)
    (home / "data/sessions/index.json").write_text("{")


def clock_set_back(home: Path) -> None:
    os.utime(home / "data/spool.db", (4e9, 4e9))


def files_of_a_shared_workspace(home: Path) -> None:
    (home / "data/workspace/main").mkdir(parents=True)
    (home / "data/workspace/main/notes.txt").touch()


def workspaces_open_to_others(home: Path) -> None:
    (home / "data/workspace/main.private").mkdir(parents=True)
    (home / "data/workspace/main.private").chmod(0o755)


def set_aside(home: Path) -> None:
    (home / "data/spool.db.corrupt-2026").touch(mode=0o600)


def old_unit(home: Path) -> None:
    where = service_paths(ServiceScope.USER, home)
    where.units.mkdir(parents=True)
    where.unit.write_text(
        shipped_units(where, Path("/bin/true"))[where.unit].replace("Restart=on-failure", "Restart=no")
    )


def unit_of_a_program_that_is_gone(home: Path) -> None:
    where = service_paths(ServiceScope.USER, home)
    where.units.mkdir(parents=True)
    where.unit.write_text(shipped_units(where, home / "gone")[where.unit])


@pytest.mark.parametrize(
    ("damage", "found", "is_mended"),
    [
        (open_to_others, ("permissions", "wrong"), True),
        (secret_in_the_open, ("permissions", "odd"), True),
        (mistyped_key, ("config", "wrong"), False),
        (unknown_secret, ("config", "wrong"), False),
        (channel_without_token, ("config", "wrong"), False),
        (damaged_transcript, ("sessions", "wrong"), True),
        (damaged_index, ("sessions", "odd"), True),
        (clock_set_back, ("clock", "wrong"), False),
        (set_aside, ("data", "odd"), False),
        (files_of_a_shared_workspace, ("workspace", "odd"), False),
        (workspaces_open_to_others, ("workspace", "odd"), True),
        (old_unit, ("service", "odd"), False),
        (unit_of_a_program_that_is_gone, ("service", "wrong"), False),
    ],
)
def test_problem_is_found_with_a_fix_and_repaired_if_possible(
    home: Path, capsys: pytest.CaptureFixture[str], damage: Break, found: tuple[str, str], *, is_mended: bool
) -> None:
    damage(home)
    code, told = examined(home, capsys)
    assert found in troubles(told)
    assert (code == 1) is (not told["is_well"])
    assert all(each["fix"] for each in told["findings"] if each["level"] != "fine")
    _, after = examined(home, capsys, "--fix")
    assert (found not in troubles(after)) is is_mended
    assert bool(after["mended"]) is is_mended


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_port_in_use_is_found(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with taken_port() as number:
        write_config(home, DEFAULTS.replace("port = 0", f"port = {number}"))
        code, told = examined(home, capsys)
    assert (code, ("port", "wrong") in troubles(told)) == (1, True)


def test_findings_are_printed_as_text(home: Path) -> None:
    mistyped_key(home)
    asked = gatehouse("doctor", home=home)
    assert asked.returncode == 1
    assert "FAIL config:" in asked.stdout
    assert "http.prot" in asked.stdout
    assert asked.stdout.endswith("1 error found.\n")


async def test_running_daemon_makes_the_calls_with_its_own_secrets(tmp_path: Path) -> None:
    """The shell that asks has neither the environment nor the credentials of the service."""
    async with bot_api() as telegram, serving(OPENAI, OPENAI.answer("yes")) as model:
        bot = {"token": TOKEN, "api_base": telegram.url}
        agents = {"main": {"provider": "fake", "model": "m", "fallbacks": ["wrong/m"]}}
        providers = {"fake": model.table(), "wrong": {**model.table(), "base_url": "http://127.0.0.1:9/v1"}}
        configured = settings(tmp_path, agents=agents, providers=providers)
        chats = {**configured.channels, "telegram": configured.channels["loopback"].model_validate(bot)}
        write_config(tmp_path, DEFAULTS + '[agents.main]\nmodel = "m"\n')
        async with gateway(configured.model_copy(update={"channels": chats})):
            asked = await asyncio.to_thread(gatehouse, "doctor", "--json", home=tmp_path)
    told = json.loads(asked.stdout)
    levels = {each["about"]: each["level"] for each in told["findings"]}
    assert (levels["channels.telegram"], levels["providers.fake"], levels["providers.wrong"]) == (
        "fine",
        "fine",
        "wrong",
    )
    assert TOKEN not in asked.stdout
    assert KEY not in asked.stdout


def test_running_daemon_checks_the_database_whose_url_it_alone_has(tmp_path: Path, database_url: str) -> None:
    write_config(tmp_path, f'{DEFAULTS}[storage]\nurl = "env:DATABASE_URL"\n')
    with DaemonProcess(tmp_path, {"DATABASE_URL": database_url}) as daemon:
        daemon.ready()
        asked = gatehouse("doctor", "--local", home=tmp_path)
    assert asked.returncode == 0, asked.stdout
    assert "ok   database: PostgreSQL " in asked.stdout

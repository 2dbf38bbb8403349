"""A link, a pipe, a socket or a folder in the place of a file: no command hangs, and none follows a link."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess, gatehouse, write_config

PLACES = (
    "gatehouse.lock",
    "control.sock",
    "http.token",
    "spool.db",
    "spool.db-wal",
    "spool.reserve",
    "files",
    "files/uploads",
    "files/.incoming",
    "files/unknown",
    "memory/{scope}",
    "memory/{scope}/{day}.md",
    "memory/{scope}.jsonl",
    "workspace",
    "workspace/main.private",
    "sessions",
    "sessions/index.json",
    "sessions/index.clean",
    "sessions/transcripts",
    "sessions/archive",
    "sessions/archive/web",
    "sessions/transcripts/{session}",
    "sessions/transcripts/unknown.jsonl",
    "sessions/transcripts/.{session}.rebuilt",
)
COMMANDS = (
    ("sessions", "list"),
    ("sessions", "verify"),
    ("spool",),
    ("doctor", "--local"),
    ("backup", "backup.tar.gz"),
)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def dangling_link(path: Path) -> None:
    path.symlink_to("nothing")


def link_outside(path: Path) -> None:
    path.symlink_to(home_of(path) / "outside")


def home_of(path: Path) -> Path:
    return next(parent.parent for parent in (path, *path.parents) if parent.name == "data")


def folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").touch()


def unix_socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # The path of a socket must be short.
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


KINDS = (pipe, link_to_itself, dangling_link, link_outside, folder, unix_socket)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home whose gateway has had a conversation and was stopped."""
    home = tmp_path_factory.mktemp("template")
    write_config(home)
    with DaemonProcess(home).ready() as daemon:
        said = gatehouse("chat", "--once", "remember that the key is under the mat", home=home)
        assert said.returncode == 0, said.stderr
        assert daemon.stop() == 0
    return home


def home_with(template: Path, home: Path, place: str, make: Callable[[Path], None]) -> Path:
    """Copy the template, and replace one of its files. Returns the path of that file."""
    shutil.copytree(template / "data", home / "data", symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
    write_config(home)
    data = home / "data"
    (outside := home / "outside").write_text("a file of the operator")
    outside.chmod(0o644)
    (session,) = (data / "sessions/transcripts").glob("*.jsonl")
    (memory,) = (data / "memory").glob("*/*.md")
    path = data / place.format(session=session.name, scope=memory.parent.name, day=memory.stem)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    make(path)
    return path


def check_outcome(path: Path, code: int, said: str) -> None:
    """Check that a failure names the file, and that a linked file outside is unchanged."""
    assert "Traceback" not in said
    assert code in {0, 1, 78}, said
    if code == 78:
        assert path.name in said
        assert "Make it writable" not in said, "That would not help."
    outside = home_of(path) / "outside"
    assert outside.read_text() == "a file of the operator"
    assert outside.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("place", PLACES)
def test_every_command_ends_with_a_pipe_in_the_place_of_a_file(template: Path, tmp_path: Path, place: str) -> None:
    for number, command in enumerate(COMMANDS):
        home = tmp_path / str(number)
        home.mkdir()
        path = home_with(template, home, place, pipe)
        done = gatehouse(*command, home=home)
        check_outcome(path, done.returncode, done.stdout + done.stderr)


@pytest.mark.parametrize("place", PLACES)
def test_the_daemon_starts_and_stops_or_names_the_file(template: Path, tmp_path: Path, place: str) -> None:
    for make in KINDS:
        home = tmp_path / make.__name__
        home.mkdir()
        path = home_with(template, home, place, make)
        with DaemonProcess(home) as daemon:
            try:
                daemon.wait_for("gateway_ready")
            except AssertionError:
                code = daemon.process.wait(60)
                assert code == 78, (make.__name__, daemon.log)
                assert gatehouse("doctor", "--local", home=home).returncode == 1, make.__name__
            else:
                code = daemon.stop()
                assert code == 0, (make.__name__, daemon.log)
            check_outcome(path, code, daemon.errors() + str(daemon.log))


@pytest.mark.parametrize("make", [pipe, folder, link_to_itself])
def test_the_daemon_stops_with_other_kinds_of_files_that_appeared_while_it_ran(
    template: Path, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    shutil.copytree(template / "data", tmp_path / "data", ignore=shutil.ignore_patterns("*.sock"))
    write_config(tmp_path)
    with DaemonProcess(tmp_path).ready() as daemon:
        assert gatehouse("chat", "--once", "hello", home=tmp_path).returncode == 0
        (session,) = (tmp_path / "data/sessions/transcripts").glob("*.jsonl")
        for name in ("index.json", "index.clean"):
            (daemon.data / "sessions" / name).unlink(missing_ok=True)
            make(daemon.data / "sessions" / name)
        for path in (session, daemon.data / "spool.reserve"):
            path.unlink()
            make(path)
        assert gatehouse("sessions", "list", home=tmp_path).returncode == 0
        said = gatehouse("chat", "--once", "are you there?", home=tmp_path)
        assert said.stdout or said.stderr
        assert daemon.stop() == 0, daemon.errors()
    with DaemonProcess(tmp_path).ready() as daemon:
        assert gatehouse("chat", "--once", "hello", home=tmp_path).returncode == 0
        assert daemon.stop() == 0

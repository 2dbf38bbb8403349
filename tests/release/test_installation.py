"""The wheel, installed by each installer into an environment of its own, away from the checkout.

The packages come from wheels of this environment (tests/release/wheelhouse.py), because tests have no network.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.cli.common import EXIT_CONFIG, EXIT_OK
from tests.daemon_process import DEFAULTS, write_config
from tests.release.conftest import TIMEOUT, Released, run
from tests.release.test_release import data_files

PROGRAMS = Path(sys.executable).parent
SQLITE = f'{DEFAULTS}[storage]\nurl = "sqlite:///{{home}}/data/gatehouse.db"\n'
"""A configuration that needs an extra."""
CONFIG = ("--config", "gatehouse.toml")


def environment(home: Path, released: Released) -> dict[str, str]:
    """Return an environment in which installers, and the gateway, write to `home` only."""
    kept = {name: value for name, value in released.environment.items() if name.startswith(("UV_", "PIP_", "LANG"))}
    folders = {"UV_TOOL_DIR": "uv", "UV_TOOL_BIN_DIR": "bin", "PIPX_HOME": "pipx", "PIPX_BIN_DIR": "bin"}
    # The programs of this environment come last: `gatehouse` has to be the installed one.
    path = f"{home}/bin:{home}/venv/bin:/usr/bin:/bin:{PROGRAMS}"
    return {**kept, **{name: str(home / folder) for name, folder in folders.items()}, "HOME": str(home), "PATH": path}


def by_uv(wheel: Path, _home: Path) -> list[list[str | Path]]:
    return [["uv", "tool", "install", "--python", sys.executable, wheel]]


def by_pipx(wheel: Path, _home: Path) -> list[list[str | Path]]:
    return [["pipx", "install", "--python", sys.executable, wheel]]


def by_pip(wheel: Path, home: Path) -> list[list[str | Path]]:
    return [
        [sys.executable, "-m", "venv", home / "venv"],
        [home / "venv/bin/python", "-m", "pip", "install", "--no-compile", wheel],
    ]


SLOW = pytest.mark.skipif("GATEHOUSE_ALL_INSTALLERS" not in os.environ, reason="slow: run `make installers`")


@pytest.mark.parametrize("installer", [by_uv, pytest.param(by_pipx, marks=SLOW), pytest.param(by_pip, marks=SLOW)])
def test_the_installed_wheel_answers_and_gets_an_extra_with_the_printed_command(
    installer: Callable[[Path, Path], list[list[str | Path]]], released: Released, tmp_path: Path
) -> None:
    env = environment(tmp_path, released)
    for command in installer(released.file("*.whl"), tmp_path):
        done = run(*command, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
    where = run("sh", "-c", 'head -n 1 "$(command -v gatehouse)"', cwd=tmp_path, env=env).stdout
    python = where.split()[0].removeprefix("#!")
    assert python.startswith(str(tmp_path))
    script = "import gateway, pathlib; print(pathlib.Path(gateway.__file__).parents[1])"
    packages = Path(run(python, "-c", script, cwd=tmp_path, env=env).stdout.strip())
    assert packages.is_relative_to(tmp_path)
    assert {name for name in data_files() if not (packages / name).exists()} == set()
    assert (packages / "gateway/deploy/launchd/gatehouse.gateway.plist").exists()

    with daemon(tmp_path, env, DEFAULTS):
        said = run("gatehouse", *CONFIG, "chat", "--once", "what time is it?", cwd=tmp_path, env=env)
        assert (said.returncode, "UTC" in said.stdout) == (0, True), said

    write_config(tmp_path, SQLITE)
    refused = run("gatehouse", *CONFIG, "run", cwd=tmp_path, env=env)
    assert refused.returncode == EXIT_CONFIG
    added = run("sh", "-c", refused.stderr.strip().rpartition("Install it: ")[2], cwd=tmp_path, env=env)
    assert added.returncode == 0, added
    with daemon(tmp_path, env, SQLITE):
        said = run("gatehouse", *CONFIG, "chat", "--once", "what time is it?", cwd=tmp_path, env=env)
        assert "UTC" in said.stdout, said


@contextmanager
def daemon(home: Path, env: Mapping[str, str], config: str) -> Iterator[None]:
    """Run the installed gateway until the end of the block, and check that it ends well."""
    write_config(home, config)
    with (home / "log").open("w") as log:
        command = ["gatehouse", *CONFIG, "run"]
        running = subprocess.Popen(command, cwd=home, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
    with running:
        try:
            assert running.stdout is not None
            assert any("gateway_ready" in line for line in running.stdout), (home / "log").read_text()
            yield
            running.terminate()
            running.stdout.read()
            assert running.wait(TIMEOUT) == EXIT_OK
        finally:
            running.kill()

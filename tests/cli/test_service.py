"""The command through its process, with a fake systemctl that records its arguments."""

import os
import subprocess
from pathlib import Path

import pytest

from gateway.install.units import ServiceScope, program_of, service_paths
from tests.daemon_process import COMMAND, environment


@pytest.fixture
def home(tmp_path: Path) -> Path:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("systemctl", "journalctl"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $@" >> {tmp_path}/told\n')
        (programs / name).chmod(0o755)
    return tmp_path


def service(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = f"{home}/bin:{os.environ['PATH']}"
    return subprocess.run(
        [COMMAND, "service", *arguments],
        cwd=home,
        env={**environment(home), "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def told(home: Path) -> list[str]:
    path = home / "told"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def test_service_is_installed_once_and_removed(home: Path) -> None:
    unit = service_paths(ServiceScope.USER, home).unit
    assert f"would write {unit}" in service(home, "install", "--user", "--dry-run").stdout
    assert not unit.exists()
    assert service(home, "install", "--user").returncode == 0
    assert told(home) == [
        "systemctl --user daemon-reload",
        "systemctl --user enable gatehouse.service",
        "systemctl --user restart gatehouse.service",
    ]
    assert program_of(unit.read_text(), home) == COMMAND
    again = service(home, "install", "--user")
    assert f"write {unit}" not in again.stdout
    assert told(home) == ["systemctl --user enable gatehouse.service", "systemctl --user start gatehouse.service"]
    unit.write_text("[Service]\n")
    assert "keeping the old one" in service(home, "install", "--user").stdout
    assert unit.with_name("gatehouse.service.old").read_text() == "[Service]\n"
    told(home)
    assert service(home, "uninstall", "--user").returncode == 0
    assert told(home) == ["systemctl --user disable --now gatehouse.service", "systemctl --user daemon-reload"]
    assert not unit.exists()
    assert "No service is installed" in service(home, "uninstall", "--user").stdout


def test_status_and_logs_run_the_programs_of_systemd(home: Path) -> None:
    assert service(home, "status", "--user").returncode == 0
    assert service(home, "logs", "--user", "-n", "5").returncode == 0
    assert told(home) == [
        "systemctl --user status --no-pager gatehouse.service",
        "journalctl --user-unit gatehouse.service --lines 5 --no-pager",
    ]


def test_failure_of_systemctl_is_reported(home: Path) -> None:
    (home / "bin/systemctl").write_text("#!/bin/sh\necho no bus >&2\nexit 1\n")
    failed = service(home, "install", "--user")
    assert (failed.returncode, "failed: no bus" in failed.stderr) == (1, True)

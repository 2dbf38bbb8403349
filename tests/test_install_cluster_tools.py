"""Tests tests/install_cluster_tools.sh with a fake `apt-get` and `id`, in a PATH that contains little else."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "install_cluster_tools.sh"
SHELL = shutil.which("sh") or "/bin/sh"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("ln", "mkdir", "tail"):
        (folder / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
    add(folder, "id", "echo 0")
    add(folder, "apt-get", f'echo "$*" >> {tmp_path}/calls')
    return folder


def add(folder: Path, name: str, script: str = "") -> None:
    (folder / name).write_text(f"#!{SHELL}\n{script}\n")
    (folder / name).chmod(0o700)


def install(programs: Path) -> str:
    env = {"PATH": str(programs), "GATEHOUSE_TOOLS_ROOT": str(programs.parent)}
    done = subprocess.run([SHELL, SCRIPT], env=env, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout


def test_missing_programs_are_installed_without_their_services(programs: Path) -> None:
    assert install(programs).startswith("Installing programs for the tests of a cluster: patroni etcd-server.")
    assert (programs.parent / "calls").read_text().endswith(" patroni etcd-server\n")
    services = programs.parent / "etc/systemd/system"
    assert {link.name: str(link.readlink()) for link in services.iterdir()} == {
        "patroni.service": "/dev/null",
        "etcd.service": "/dev/null",
    }


def test_present_programs_are_not_installed_again(programs: Path) -> None:
    add(programs, "patroni")
    add(programs, "etcd")
    assert install(programs) == ""
    assert not (programs.parent / "calls").exists()


@pytest.mark.parametrize(
    ("name", "script", "reason"), [("id", "echo 1000", "needs root"), ("apt-get", "", "needs apt-get")]
)
def test_the_output_says_what_is_missing(programs: Path, name: str, script: str, reason: str) -> None:
    (programs / name).unlink()
    if script:
        add(programs, name, script)
    said = install(programs)
    assert reason in said
    assert "sudo apt-get install patroni etcd-server" in said


def test_a_failed_installation_is_reported(programs: Path) -> None:
    add(programs, "apt-get", "echo E: no network; exit 1")
    assert "Not installed: patroni etcd-server (E: no network)" in install(programs)

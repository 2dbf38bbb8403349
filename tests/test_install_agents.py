"""Tests tests/install_agents.sh with a fake `npm` and `node`, in a copy of the folders that it uses."""

import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SHELL = shutil.which("sh") or "/bin/sh"
NEEDED = ("cat", "cmp", "cp", "dirname", "grep", "head", "mkdir", "rm")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(TESTS / "acp" / "agents", tmp_path / "tests" / "acp" / "agents")
    for script in ("install_agents.sh", "npm.sh"):
        shutil.copy(TESTS / script, tmp_path / "tests")
    (tmp_path / "bin").mkdir()
    for name in NEEDED:
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
    add(tmp_path, "npm", f'echo "$*" >> {tmp_path}/calls')
    add(tmp_path, "node")
    return tmp_path


def add(project: Path, name: str, script: str = "") -> None:
    (project / "bin" / name).write_text(f"#!{SHELL}\n{script}\n")
    (project / "bin" / name).chmod(0o700)


def install(project: Path, *arguments: str, **env: str) -> str:
    done = subprocess.run(
        [SHELL, "tests/install_agents.sh", *arguments],
        cwd=project,
        env={"PATH": str(project / "bin"), **env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout


def calls(project: Path) -> list[str]:
    file = project / "calls"
    return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


def test_two_agents_are_installed_once(project: Path) -> None:
    assert install(project).startswith("Installing two coding agents for the tests")
    assert install(project) == ""
    assert calls(project) == ["ci"]


def test_the_others_are_installed_on_request_and_once(project: Path) -> None:
    install(project)
    assert install(project, "all").startswith("Installing four more")
    assert install(project, "all") == ""
    assert calls(project) == ["ci", "install"]


def test_another_lock_file_installs_them_again(project: Path) -> None:
    install(project)
    (project / "tests/acp/agents/package-lock.json").write_text("{}")
    install(project)
    assert calls(project) == ["ci", "ci"]


def test_agents_that_are_installed_elsewhere_are_not_installed(project: Path) -> None:
    assert install(project, GATEHOUSE_AGENTS="/opt/agents") == ""
    assert calls(project) == []


def test_without_npm_or_a_new_node_it_says_so(project: Path) -> None:
    add(project, "node", "exit 1")
    assert "Node 20 or newer is missing. The tests with real agents will be skipped." in install(project)
    (project / "bin" / "npm").unlink()
    assert "npm is missing." in install(project)


def test_an_installation_that_fails_is_tried_again(project: Path) -> None:
    works = (project / "bin" / "npm").read_text()
    add(project, "npm", "echo 'npm warn x'; echo 'npm error code ENOTFOUND'; exit 1")
    assert "could not be installed: npm error code ENOTFOUND. The tests" in install(project)
    (project / "bin" / "npm").write_text(works)
    install(project)
    assert calls(project) == ["ci"]


def test_the_lock_file_names_no_registry() -> None:
    assert '"resolved"' not in (TESTS / "acp" / "agents" / "package-lock.json").read_text()

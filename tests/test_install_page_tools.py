"""Tests tests/page/install_tools.sh and tests/page/lint.sh with a fake `npm`, in a copy of their folders."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SHELL = shutil.which("sh") or "/bin/sh"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(TESTS / "page" / "tools", tmp_path / "tests/page/tools")
    for script in ("npm.sh", "page/install_tools.sh", "page/lint.sh"):
        shutil.copy(TESTS / script, tmp_path / "tests" / script)
    add(tmp_path, "bin/npm", f'echo "$*" >> {tmp_path}/calls')
    add(tmp_path, "bin/node")
    return tmp_path


def add(project: Path, path: str, script: str = "") -> None:
    (project / path).parent.mkdir(parents=True, exist_ok=True)
    (project / path).write_text(f"#!{SHELL}\n{script}\n")
    (project / path).chmod(0o700)


def run(project: Path, script: str, *, status: int = 0) -> str:
    done = subprocess.run(
        [SHELL, f"tests/page/{script}"],
        cwd=project,
        env={"PATH": f"{project / 'bin'}:{os.defpath}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, "")
    return done.stdout


def test_the_tools_are_installed_once_and_again_with_another_lock_file(project: Path) -> None:
    assert run(project, "install_tools.sh").startswith("Installing the tools that check the pages")
    assert run(project, "install_tools.sh") == ""
    (project / "tests/page/tools/package-lock.json").write_text("{}")
    run(project, "install_tools.sh")
    assert [line.split()[0] for line in (project / "calls").read_text().splitlines()] == ["ci", "ci"]


def test_an_installation_that_fails_says_why_and_is_tried_again(project: Path) -> None:
    add(project, "bin/npm", "echo 'npm warn x'; echo 'npm error code ENOTFOUND'; exit 1")
    for _ in range(2):
        assert "could not be installed: npm error code ENOTFOUND. Those checks" in run(project, "install_tools.sh")
    add(project, "bin/node", "exit 1")
    assert "Node 20 or newer is missing." in run(project, "install_tools.sh")


def test_without_the_tools_nothing_is_checked_and_with_them_a_mistake_fails(project: Path) -> None:
    assert "was not checked" in run(project, "lint.sh")
    add(project, ".venv/page-tools/node_modules/.bin/tsc", "echo wrong type; exit 2")
    add(project, ".venv/page-tools/node_modules/.bin/eslint", "echo wrong style; exit 1")
    assert run(project, "lint.sh", status=1) == "wrong type\n"
    add(project, ".venv/page-tools/node_modules/.bin/tsc")
    assert run(project, "lint.sh", status=1) == "wrong style\n"


def test_the_lock_file_names_no_registry() -> None:
    assert '"resolved"' not in (TESTS / "page/tools/package-lock.json").read_text()

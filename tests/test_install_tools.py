"""Tests tests/install_tools.sh with a fake `apt-get` and `id`, in a PATH that contains little else."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "install_tools.sh"
SHELL = shutil.which("sh") or "/bin/sh"
NEEDED = ("ln", "mkdir", "rm", "tail")
PACKAGES = ["chromium", "firefox-esr", "bubblewrap", "strace", "postgresql", "pgbouncer", "haproxy", "prometheus"]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in NEEDED:
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


def installed(programs: Path) -> list[str]:
    calls = programs.parent / "calls"
    return [line.split()[-1] for line in calls.read_text().splitlines() if " install " in line]


def test_missing_programs_are_installed(programs: Path) -> None:
    assert install(programs).startswith(f"Installing programs for the tests: {' '.join(PACKAGES)}.")
    assert installed(programs) == PACKAGES


def test_present_programs_are_not_installed_again(programs: Path) -> None:
    for name in ("google-chrome", "firefox", "strace", "pgbouncer", "haproxy", "promtool"):
        add(programs, name)
    server = programs.parent / "usr/lib/postgresql/15/bin"
    server.mkdir(parents=True)
    add(server, "postgres")
    install(programs)
    assert installed(programs) == ["bubblewrap"]


def test_without_missing_programs_the_script_does_nothing(programs: Path) -> None:
    for name in ("chromium", "firefox", "bwrap", "strace", "postgres", "pgbouncer", "haproxy", "promtool"):
        add(programs, name)
    assert install(programs) == ""
    assert not (programs.parent / "calls").exists()


def test_installed_packages_start_no_services(programs: Path) -> None:
    etc = programs.parent / "etc"
    settings = etc / "postgresql-common/createcluster.d/gatehouse-tests.conf"
    add(programs, "apt-get", f"while read -r line; do echo $line > {programs.parent}/seen; done < {settings}")
    install(programs)
    assert (programs.parent / "seen").read_text() == "create_main_cluster = false\n"
    assert not settings.exists()
    for server in ("pgbouncer", "haproxy"):
        assert (etc / f"systemd/system/{server}.service").readlink() == Path("/dev/null")


def test_a_package_that_fails_does_not_stop_the_others(programs: Path) -> None:
    add(
        programs,
        "apt-get",
        f'echo "$*" >> {programs.parent}/calls\ncase "$*" in *chromium) echo "E: none"; exit 100;; esac',
    )
    said = install(programs)
    assert installed(programs) == PACKAGES
    assert "chromium could not be installed: E: none\n" in said
    assert "Not installed: chromium. The tests that need these programs will be skipped." in said


@pytest.mark.parametrize("lacks", ["root", "apt-get"])
def test_without_the_rights_or_apt_it_says_which_packages_to_install(programs: Path, lacks: str) -> None:
    if lacks == "root":
        add(programs, "id", "echo 1000")
    else:
        (programs / "apt-get").unlink()
    assert install(programs).endswith(f"sudo apt-get install {' '.join(PACKAGES)}\n")
    assert not (programs.parent / "calls").exists()

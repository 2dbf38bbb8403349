"""The Debian package on a clean Debian with a real systemd: installed, upgraded with its data, removed and purged.

`make deb-test` makes the Debian, and runs this. What the test changes in it is discarded.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.machine import NEEDS_NAMESPACES, Machine, booted
from tests.release.conftest import DEBIAN, Released, run

CLEAN_ROOT = os.environ.get("GATEHOUSE_DEBIAN_ROOT")
LISTED = "find / -xdev -iname '*gatehouse*' -not -path '/proc/*' -not -path '/tmp/*' | sort; getent passwd | sort"
GATEHOUSE = "gatehouse --config /etc/gatehouse/gatehouse.toml"


pytestmark = [
    *NEEDS_NAMESPACES,
    pytest.mark.skipif(CLEAN_ROOT is None or DEBIAN is None, reason="takes minutes: run `make deb-test`"),
]


@pytest.fixture
def older(released: Released, tmp_path: Path) -> Path:
    """Return the package of an older version, which has a module that is gone now."""
    root = tmp_path / "older"
    assert run("dpkg-deb", "--raw-extract", released.file("*.deb"), root, cwd=tmp_path).returncode == 0
    control = root / "DEBIAN/control"
    control.write_text(re.sub(r"^Version: .*$", "Version: 0.0.9", control.read_text(), flags=re.MULTILINE))
    (module,) = root.glob("opt/gatehouse/lib/*/site-packages/gateway/__init__.py")
    module.write_text(module.read_text().replace(f'"{released.version}"', '"0.0.9"'))
    module.with_name("former.py").touch()
    package = tmp_path / "older.deb"
    built = run("dpkg-deb", "--root-owner-group", "--build", root, package, cwd=tmp_path, env=released.environment)
    assert built.returncode == 0, built.stderr
    return package


@pytest.fixture
def machine() -> Iterator[Machine]:
    with booted(Path(CLEAN_ROOT or "")) as machine:
        yield machine


def test_the_package_is_installed_upgraded_removed_and_purged(
    released: Released, older: Path, machine: Machine
) -> None:
    before = machine.run(LISTED)
    machine.copy(older, "/root/older.deb")
    machine.copy(released.file("*.deb"), "/root/newer.deb")
    check_installation(machine)
    check_upgrade(machine, released.version)
    check_the_command_line_of_the_package(machine)
    check_an_extra(machine, Path(released.environment["PIP_FIND_LINKS"]))
    check_removal(machine)
    assert machine.run(LISTED) == before
    check_that_an_installation_by_hand_is_not_overwritten(machine)


def install(machine: Machine, package: str) -> subprocess.CompletedProcess[str]:
    return machine.attempt(f"DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends {package}")


def check_installation(machine: Machine) -> None:
    installed = install(machine, "/root/older.deb")
    assert installed.returncode == 0, installed
    assert machine.property("ActiveState") == "active", machine.journal()
    assert machine.run("systemctl is-enabled gatehouse") == "enabled\n"
    assert machine.run("gatehouse --version") == "gatehouse 0.0.9\n"
    process = machine.property("MainPID")
    assert machine.run(f"stat --format %U /proc/{process}") == "gatehouse\n"
    assert machine.run(f"readlink /proc/{process}/exe").startswith("/usr/bin/python3")
    assert "You said" in machine.run(f"{GATEHOUSE} chat --once 'the door is blue'")
    assert machine.run("ls /opt/gatehouse/lib/*/site-packages/gateway/former.py")


def check_upgrade(machine: Machine, version: str) -> None:
    machine.run("echo '# mine' >> /etc/gatehouse/gatehouse.toml")
    upgraded = install(machine, "/root/newer.deb")
    assert upgraded.returncode == 0, upgraded
    assert machine.run("gatehouse --version") == f"gatehouse {version}\n"
    assert machine.property("ActiveState") == "active", machine.journal()
    assert machine.attempt("find /opt/gatehouse -name 'former*'").stdout == ""
    assert "the door is blue" in machine.run(f"{GATEHOUSE} chat --once /history")
    assert machine.run("tail -n 1 /etc/gatehouse/gatehouse.toml") == "# mine\n"


def check_the_command_line_of_the_package(machine: Machine) -> None:
    told = machine.attempt(f"{GATEHOUSE} doctor").stdout
    assert "/usr/lib/systemd/system/gatehouse.service is up to date." in told, told
    assert "FAIL " not in told, told
    assert "write" not in machine.run("gatehouse service install --system")
    refused = machine.attempt("gatehouse service uninstall --system")
    assert "sudo apt remove gatehouse-gateway" in refused.stderr


def check_an_extra(machine: Machine, wheels: Path) -> None:
    """Add it as the log says. Files of the package stay as they are."""
    machine.run("mkdir /root/wheels")
    for name in ("alembic", "mako", "markupsafe", "rich", "sqlalchemy", "typing_extensions"):
        (wheel,) = wheels.glob(f"{name}-*")
        machine.copy(wheel, f"/root/wheels/{wheel.name}")
    machine.run("""printf '[storage]\nurl = "sqlite:////var/lib/gatehouse/g.db"\n' >> /etc/gatehouse/gatehouse.toml""")
    assert machine.attempt("systemctl restart gatehouse").returncode != 0
    said = machine.run("journalctl -u gatehouse --no-pager -o cat | grep 'Install it: ' | tail -n 1")
    command = said.strip().rpartition("Install it: ")[2]
    assert command.startswith("sudo /opt/gatehouse/bin/python -m pip install 'alembic"), said
    offline = "PIP_NO_INDEX=1 PIP_FIND_LINKS=/root/wheels"
    machine.run(f"{offline} {command.removeprefix('sudo ')}")
    replaced = machine.attempt(f"{offline} /opt/gatehouse/bin/python -m pip install --force-reinstall --no-deps rich")
    assert "installed by dpkg" in replaced.stderr, replaced
    assert machine.run("dpkg --verify gatehouse-gateway") == ""
    machine.run("systemctl reset-failed gatehouse; systemctl restart gatehouse")
    assert "You said" in machine.run(f"{GATEHOUSE} chat --once 'the window is green'")


def check_removal(machine: Machine) -> None:
    removed = machine.attempt("apt-get remove -qq -y gatehouse-gateway")
    assert removed.returncode == 0, removed
    assert machine.property("LoadState") == "not-found"
    machine.run("test ! -e /opt/gatehouse && test ! -e /usr/bin/gatehouse")
    machine.run("test -s /etc/gatehouse/gatehouse.toml && test -d /var/lib/private/gatehouse/sessions")
    purged = machine.attempt("apt-get purge -qq -y gatehouse-gateway")
    assert purged.returncode == 0, purged


def check_that_an_installation_by_hand_is_not_overwritten(machine: Machine) -> None:
    machine.run("mkdir -p /opt/gatehouse/bin && touch /opt/gatehouse/bin/gatehouse")
    refused = install(machine, "/root/newer.deb")
    assert refused.returncode != 0
    assert "Configuration and conversations stay:" in refused.stdout + refused.stderr
    assert machine.run("find /opt/gatehouse -type f") == "/opt/gatehouse/bin/gatehouse\n"

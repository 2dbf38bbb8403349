"""The contents of the Debian package, and its maintainer scripts."""

import re
import shutil
from pathlib import Path

import pytest

from tests.release.conftest import DEBIAN, ROOT, Released, run

SCRIPTS = ROOT / "deploy/debian"


@pytest.mark.parametrize("name", ["preinst", "postinst", "prerm", "postrm"])
def test_maintainer_scripts_are_valid_shell(name: str) -> None:
    checked = run("sh", "-n", SCRIPTS / name, cwd=ROOT)
    assert (checked.returncode, checked.stderr) == (0, "")
    if shutil.which("shellcheck"):
        checked = run("shellcheck", SCRIPTS / name, cwd=ROOT)
        assert (checked.returncode, checked.stdout) == (0, "")


@pytest.mark.skipif(DEBIAN is None, reason="the package has no variant for this Python")
def test_the_package_has_the_environment_the_command_and_the_units(released: Released, tmp_path: Path) -> None:
    package = released.file("*.deb")
    assert run("dpkg-deb", "--raw-extract", package, tmp_path / "raw", cwd=tmp_path).returncode == 0
    root = tmp_path / "raw"
    control = (root / "DEBIAN/control").read_text()
    assert f"Version: {released.version}+deb{DEBIAN}\n" in control
    assert (root / "usr/bin/gatehouse").readlink() == Path("/opt/gatehouse/bin/gatehouse")
    (packages,) = root.glob("opt/gatehouse/lib/python3.*/site-packages")
    assert f"Depends: {packages.parent.name}, " in control
    # The units differ from those of `gatehouse service install` in nothing but the program.
    for unit in (root / "usr/lib/systemd/system").iterdir():
        shipped = (ROOT / "deploy/systemd" / unit.name).read_text()
        assert unit.read_text() == shipped.replace("/usr/local/bin/gatehouse", "/opt/gatehouse/bin/gatehouse")
    # Nothing of the machine that built it.
    assert list(packages.rglob("__pycache__")) == list(packages.rglob("direct_url.json")) == []
    assert {path.read_text() for path in packages.glob("*.dist-info/INSTALLER")} == {"dpkg\n"}
    listed = run("dpkg-deb", "--contents", package, cwd=tmp_path).stdout.splitlines()
    assert {re.sub(r"\s+", " ", line).split(" ")[1] for line in listed} == {"root/root"}
    assert {line[7:9] for line in listed if not line.startswith("l")} <= {"r-"}  # Nobody else writes; all may read.

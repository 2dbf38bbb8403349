import os
import shutil
import subprocess
from pathlib import Path

import pytest

from config import load

UNITS = Path(__file__).parents[2] / "deploy/systemd"

NEEDS_SYSTEMD = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def analyze(*arguments: str | Path, runtime: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments],  # noqa: S607 - found on the PATH above
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
        capture_output=True,
        text=True,
        check=False,
    )


def with_a_command_that_exists(unit: str, folder: Path) -> Path:
    text = (UNITS / unit).read_text()
    copy = folder / unit
    copy.write_text(
        text.replace("/usr/local/bin/gatehouse", "/bin/true").replace("%h/.local/bin/gatehouse", "/bin/true")
    )
    return copy


@NEEDS_SYSTEMD
@pytest.mark.parametrize(
    ("unit", "manager"),
    [
        ("gatehouse.service", "--system"),
        ("gatehouse-sandbox.socket", "--system"),
        ("gatehouse-sandbox.service", "--system"),
        ("gatehouse-user.service", "--user"),
    ],
)
def test_unit_passes_systemd_analyze_verify(unit: str, manager: str, tmp_path: Path) -> None:
    """systemd-analyze reports an unknown key on stderr, but exits with 0."""
    for other in UNITS.glob("gatehouse-sandbox.*"):
        with_a_command_that_exists(other.name, tmp_path)
    verified = analyze(manager, "verify", with_a_command_that_exists(unit, tmp_path), runtime=tmp_path)
    assert (verified.returncode, verified.stderr) == (0, "")


@NEEDS_SYSTEMD
@pytest.mark.parametrize(("unit", "exposure"), [("gatehouse.service", 11), ("gatehouse-sandbox.service", 15)])
def test_system_units_are_hardened(unit: str, exposure: int, tmp_path: Path) -> None:
    """`make systemd` tests that the shell works in them."""
    copy = with_a_command_that_exists(unit, tmp_path)
    rated = analyze("security", "--offline=true", f"--threshold={exposure}", copy, runtime=tmp_path)
    assert rated.returncode == 0, rated.stdout.splitlines()[-1]


@pytest.mark.parametrize("unit", ["gatehouse.service", "gatehouse-user.service"])
def test_exit_code_78_is_not_restarted(unit: str) -> None:
    lines = (UNITS / unit).read_text().splitlines()
    assert {
        "Type=notify",
        "Restart=on-failure",
        "RestartPreventExitStatus=78",
        "KillMode=mixed",
        "WatchdogSec=60",
    } <= set(lines)


def test_service_and_root_use_the_same_data_directory(tmp_path: Path) -> None:
    """With the $HOME of the service and with that of root."""
    lines = (UNITS / "gatehouse.service").read_text().splitlines()
    assert "StateDirectory=gatehouse" in lines  # Below /var/lib.
    assert "ExecStart=/usr/local/bin/gatehouse --config /etc/gatehouse/gatehouse.toml run" in lines
    # A private copy: git gives the original mode 664 under umask 002, and such a file is warned about.
    path = tmp_path / "gatehouse.toml"
    path.write_bytes((UNITS / "gatehouse.toml").read_bytes())
    path.chmod(0o600)
    for home in ("/root", "/var/lib/gatehouse"):
        shipped = load(path, {"HOME": home})
        assert shipped.settings.gateway.data_dir == Path("/var/lib/gatehouse")
        assert shipped.warnings == ()

"""Time zones by name, and the system's own."""

from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from config import ConfigError, GatewaySettings, load
from config.types import system_time_zone

BERLIN = ZoneInfo("Europe/Berlin")


def test_the_time_zone_is_taken_from_the_settings() -> None:
    assert GatewaySettings(timezone="Europe/Berlin").zone == BERLIN


@pytest.mark.parametrize("name", ["Berlin", "Europe", "../../etc/passwd", "/etc/localtime", "", "A\\u0000"])
def test_an_unknown_time_zone_is_reported(tmp_path: Path, name: str) -> None:
    file = tmp_path / "gatehouse.toml"
    file.write_text(f'[gateway]\ntimezone = "{name}"\n')
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=r"gateway\.timezone.*is not a time zone"):
        load(file)


def test_the_systems_zone_comes_from_tz_or_etc_localtime(tmp_path: Path) -> None:
    linked = tmp_path / "localtime"
    linked.symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    copied = tmp_path / "copy"
    copied.write_bytes(linked.read_bytes())
    assert system_time_zone("", linked) == BERLIN
    assert str(system_time_zone("", copied)) == "local"
    assert system_time_zone(":Asia/Tokyo", linked) == ZoneInfo("Asia/Tokyo")


def test_an_unreadable_system_zone_becomes_utc(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"garbage")
    for variable, file in (("CET-1CEST,M3", "none"), ("", "none"), ("", "garbage")):
        assert system_time_zone(variable, tmp_path / file) == UTC

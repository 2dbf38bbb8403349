from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from config import ConfigError, GatewaySettings, load
from config.time_zones import _system_zone

BERLIN = ZoneInfo("Europe/Berlin")


def test_the_zone_is_the_one_that_was_named() -> None:
    assert GatewaySettings(timezone="Europe/Berlin").zone == BERLIN


@pytest.mark.parametrize("name", ["Berlin", "Europe", "../../etc/passwd", "/etc/localtime", "", "A\\u0000"])
def test_a_name_that_is_none_is_told(tmp_path: Path, name: str) -> None:
    file = tmp_path / "gatehouse.toml"
    file.write_text(f'[gateway]\ntimezone = "{name}"\n')
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=r"gateway\.timezone.*no time zone"):
        load(file)


def test_the_systems_zone_is_found_where_the_c_library_looks(tmp_path: Path) -> None:
    linked = tmp_path / "localtime"
    linked.symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    copied = tmp_path / "copy"
    copied.write_bytes(linked.read_bytes())
    assert _system_zone("", linked) == BERLIN
    assert str(_system_zone("", copied)) == "local"
    assert _system_zone(":Asia/Tokyo", linked) == ZoneInfo("Asia/Tokyo")


def test_a_zone_that_cannot_be_made_out_is_utc(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"garbage")
    for variable, file in (("CET-1CEST,M3", "none"), ("", "none"), ("", "garbage")):
        assert _system_zone(variable, tmp_path / file) == UTC

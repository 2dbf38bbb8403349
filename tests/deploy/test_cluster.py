"""The files of deploy/cluster fit together. Nothing here needs Docker."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from config import Settings
from tests.daemon_process import COMMAND, environment
from tests.deploy.proxy import CONFIG, find_haproxy
from tests.forks.process import forked

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "cluster"
SECRETS = {"GATEHOUSE_TOKEN": "a-token-of-all-nodes", "GATEHOUSE_DB_PASSWORD": "hunter2-hunter2"}
NODES = ("one", "two", "three")


@pytest.fixture
def compose() -> dict[str, Any]:  # Any: YAML.
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return found


def mounts(service: dict[str, Any]) -> dict[str, str]:  # Any: YAML.
    """Return what is mounted where, by its place in the container."""
    return {place: source for source, place, *_ in (each.split(":") for each in service["volumes"])}


def test_all_files_and_volumes_exist(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for source in mounts(service).values():
            assert (FOLDER / source).is_file() if source.startswith(".") else source in compose["volumes"]
    for name in NODES:
        build = compose["services"][name]["build"]
        assert (FOLDER / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()


def test_nodes_differ_in_their_name_and_data_only(compose: dict[str, Any]) -> None:
    services = [compose["services"][name] for name in NODES]
    assert [each["hostname"] for each in services] == list(NODES)
    assert [mounts(each)["/var/lib/gatehouse"] for each in services] == list(NODES)
    ignored = {"hostname", "volumes"}
    rest = [{key: value for key, value in each.items() if key not in ignored} for each in services]
    assert rest[0] == rest[1] == rest[2]


def test_the_services_have_the_names_and_ports_that_the_files_use(compose: dict[str, Any]) -> None:
    settings = (FOLDER / "gatehouse.toml").read_text()
    assert "@postgres/gatehouse" in settings
    assert "postgres" in compose["services"]
    proxy = CONFIG.read_text()
    servers = re.findall(r"^ +server (\w+) (\w+):(\d+)$", proxy, re.MULTILINE)
    assert servers == [(name, name, "8420") for name in NODES] * 2, "both backends have all nodes"
    assert "port = 8420" in settings
    (published,) = compose["services"]["proxy"]["ports"]
    assert published == "127.0.0.1:8080:8080"
    assert "bind :8080" in proxy
    hosts = set(re.findall(r"hdr Host (\S+)", proxy))
    assert hosts == {"localhost:8080"}
    assert 'allowed_hosts = ["localhost:8080"]' in settings


def test_the_containers_get_every_variable_that_the_settings_name(compose: dict[str, Any]) -> None:
    text = (FOLDER / "gatehouse.toml").read_text()
    active = [line for line in text.splitlines() if not line.startswith("#")]
    named = set(re.findall(r"env:(\w+)", "\n".join(active)))
    assert named == compose["services"]["one"]["environment"].keys() == SECRETS.keys()


def test_a_node_has_longer_to_stop_than_its_turns(compose: dict[str, Any]) -> None:
    grace = int(compose["services"]["one"]["stop_grace_period"].removesuffix("s"))
    assert grace > Settings().gateway.shutdown_timeout + 10


def test_the_settings_of_the_nodes_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "gatehouse.toml"
    path.write_text((FOLDER / "gatehouse.toml").read_text().replace("/var/lib/gatehouse", f"{tmp_path}/data"))
    path.chmod(0o600)
    checked = forked(
        [str(COMMAND), "--config", str(path), "config", "check"],
        cwd=tmp_path,
        env=environment(tmp_path, SECRETS),
        stdin="",
        timeout=60,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "warn" not in (checked.stdout + checked.stderr).lower()


def test_haproxy_accepts_its_configuration() -> None:
    program = find_haproxy()
    checked = subprocess.run([program, "-c", "-f", CONFIG], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    others = [line for line in checked.stderr.splitlines() if "WARNING" in line and "could not resolve" not in line]
    assert not others

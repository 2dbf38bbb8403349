"""What a node says about itself to the others."""

import socket
from pathlib import Path

import pytest

from config import Settings
from gateway.cluster.identity import WILDCARDS, announced_address
from tests.config.harness import problems_of, write_config

ALL = "0.0.0.0"  # noqa: S104 - nothing listens here.


def announced(url: str = "http://127.0.0.1:8420", *, host: str, address: str = "", database: str) -> str:
    tables = {
        "http": {"host": host, "token": "a-token-of-all-nodes"},
        "storage": {"url": database},
        "cluster": {"enabled": True, "address": address},
    }
    return announced_address(Settings.model_validate(tables), url)


def test_the_setting_wins() -> None:
    found = announced(host=ALL, address="http://one:8420/", database="postgresql://db.invalid/x")
    assert found == "http://one:8420"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("one:8420", "must be a URL"),
        ("http://", "must be a URL"),
        ("http://one:99999", "must be a URL"),
        ("http://me:hunter2@one:8420", "must not contain a user name or password"),
        ("http://one:8420/?key=hunter2", "must not contain a query"),
        ("http://one:8420#", "must not contain a query"),
    ],
)
def test_an_address_that_no_request_could_use_is_refused(tmp_path: Path, address: str, message: str) -> None:
    """Every node stores its address in the database, and shows it."""
    problem = problems_of(write_config(tmp_path, f'[cluster]\naddress = "{address}"\n'))["cluster.address"]
    assert message in problem.message
    assert "hunter2" not in str(problem)


def test_one_address_is_announced_as_it_is() -> None:
    found = announced("http://10.0.0.2:8420", host="10.0.0.2", database="postgresql://localhost/x")
    assert found == "http://10.0.0.2:8420"


@pytest.mark.parametrize("host", list(WILDCARDS))
def test_all_addresses_are_announced_as_the_one_in_the_network_of_the_database(host: str) -> None:
    """A connection to this machine's own address comes from that address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        own = probe.getsockname()[0]
    assert announced(host=host, database=f"postgresql://gatehouse@{own}:5433/x") == f"http://{own}:8420"


@pytest.mark.parametrize("database", ["postgresql:///x?host=/run/postgresql", "postgresql:///x"])
def test_a_database_on_this_machine_is_reached_from_this_machine(database: str) -> None:
    assert announced(host=ALL, database=database) == "http://127.0.0.1:8420"


def test_a_database_whose_name_is_unknown_changes_nothing() -> None:
    assert announced(host=ALL, database="postgresql://db..invalid/x") == "http://127.0.0.1:8420"

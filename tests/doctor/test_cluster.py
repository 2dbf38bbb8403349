"""The checks of `gatehouse doctor` for clusters: rows of nodes in a real database, and a real node that answers."""

import socket
from pathlib import Path

import msgspec
import psycopg
import pytest

from config import Secret, Settings
from gateway import __version__
from gateway.cluster.identity import shared_digest
from gateway.database.lease import Holder
from gateway.database.migrate import ensure_current
from gateway.doctor.cluster import check_cluster
from gateway.doctor.finding import Finding, Level
from gateway.http.forwarding import Forwarder
from tests.http.harness import serving
from tests.ports import free_port

TOKEN = "a-token-of-all-nodes"
ELSEWHERE = "another-machine"


@pytest.fixture
def settings(database_url: str) -> Settings:
    tables = {
        "storage": {"url": database_url},
        "cluster": {"enabled": True},
        "http": {"token": TOKEN},
        "files": {"shared": "database"},
    }
    found = Settings.model_validate(tables)
    ensure_current(found.storage)
    return found


def add_node(settings: Settings, name: str, address: str, *, host: str = "", silent: int = 0, config: str = "") -> None:
    """Insert the row of a node that runs on `host`, or on this machine."""
    holder = msgspec.structs.replace(Holder.here(Path("/srv")), host=host or socket.gethostname())
    with psycopg.connect(settings.storage.url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO node (boot, name, address, holder, version, schema, config, lease_ms, renewed_at) "
            "VALUES (%s, %s, %s, %s, %s, '0003', %s, 8000, now() - %s * interval '1 second')",
            (
                name + address,
                name,
                address,
                msgspec.json.encode(holder).decode(),
                __version__,
                config or shared_digest(settings),
                silent,
            ),
        )


def problems(findings: list[Finding]) -> list[tuple[Level, str]]:
    return [(each.level, each.message) for each in findings if each.level is not Level.OK]


async def problem(settings: Settings) -> tuple[Level, str]:
    (found,) = problems(await check_cluster(settings))
    return found


async def test_a_gateway_without_a_cluster_has_no_findings() -> None:
    assert await check_cluster(Settings()) == []


async def test_a_cluster_without_nodes_is_no_problem(settings: Settings) -> None:
    (found,) = await check_cluster(settings)
    assert (found.level, found.message) == (Level.OK, "No node is running.")


async def test_a_database_that_is_away_is_left_to_its_own_check(settings: Settings) -> None:
    storage = settings.storage.model_copy(update={"url": "postgresql:///gone?host=/nowhere"})
    assert await check_cluster(settings.model_copy(update={"storage": storage})) == []


async def test_a_node_that_answers_is_fine(tmp_path: Path, settings: Settings) -> None:
    async with serving(tmp_path, forwarder=node_of(TOKEN)) as node:
        add_node(settings, "one", node.server.url)
        findings = await check_cluster(settings)
    assert problems(findings) == []
    assert findings[-1].message == f"The node one at {node.server.url} accepts requests of other nodes."


async def test_a_node_with_another_token_is_named(tmp_path: Path, settings: Settings) -> None:
    async with serving(tmp_path, forwarder=node_of("another-token-0123456789")) as node:
        add_node(settings, "one", node.server.url)
        level, message = await problem(settings)
    assert level is Level.ERROR
    assert message == f"The node one at {node.server.url} does not accept the token of this gateway."


def node_of(token: str) -> Forwarder:
    async def locate(scope: str) -> None:
        raise AssertionError(scope)

    return Forwarder(locate, lambda: Secret(token))


async def test_a_node_that_cannot_be_reached_is_an_error(settings: Settings) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    add_node(settings, "one", address)
    level, message = await problem(settings)
    assert level is Level.ERROR
    assert message.startswith(f"The node one at {address} can't be reached from here (")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_a_loopback_address_is_an_error_if_nodes_are_on_several_machines(settings: Settings, host: str) -> None:
    add_node(settings, "one", f"http://{host}:8420", host=ELSEWHERE)
    assert problems(await check_cluster(settings)) == [], "a request to it would reach this machine"
    add_node(settings, "two", "http://127.0.0.1:9", host="a-third-machine")
    messages = [message for _, message in problems(await check_cluster(settings))]
    assert f"The node one gives the address http://{host}:8420, which other machines can't reach." in messages


async def test_nodes_with_one_address_are_an_error_and_one_without_is_starting(settings: Settings) -> None:
    add_node(settings, "one", "http://127.0.0.1:9", host=ELSEWHERE)
    add_node(settings, "two", "http://127.0.0.1:9", host=ELSEWHERE)
    add_node(settings, "three", "", host=ELSEWHERE)
    assert problems(await check_cluster(settings)) == [
        (Level.ERROR, "The nodes one and two give the same address, http://127.0.0.1:9."),
        (Level.WARNING, "The node three is still starting."),
    ]


async def test_a_silent_node_is_reported(settings: Settings) -> None:
    add_node(settings, "one", "http://10.255.255.1:8420", silent=60)
    level, message = await problem(settings)
    assert level is Level.WARNING
    assert message.startswith("The node one has been silent for ")


async def test_other_settings_and_equal_names_are_reported(settings: Settings) -> None:
    add_node(settings, "one", "http://127.0.0.1:9", host=ELSEWHERE)
    add_node(settings, "one", "http://127.0.0.1:10", host=ELSEWHERE, config="other")
    assert problems(await check_cluster(settings)) == [
        (Level.WARNING, "2 nodes are called one."),
        (Level.WARNING, "The settings of the node one differ from those of this gateway."),
    ]


async def test_a_label_that_no_node_has_is_reported(settings: Settings) -> None:
    agents = {name: agent.model_copy(update={"label": "builds"}) for name, agent in settings.agents.items()}
    labelled = settings.model_copy(update={"agents": agents})
    add_node(labelled, "one", "http://127.0.0.1:9", host=ELSEWHERE)
    level, message = await problem(labelled)
    assert level is Level.WARNING
    assert message == "No node has the label builds, which repositories or agents need."


async def test_settings_of_another_version_are_not_compared(settings: Settings) -> None:
    add_node(settings, "one", "http://127.0.0.1:9", host=ELSEWHERE, config="other")
    with psycopg.connect(settings.storage.url, autocommit=True) as connection:
        connection.execute("UPDATE node SET version = '0.0.1'")
    assert problems(await check_cluster(settings)) == []


async def test_files_that_stay_at_one_node_are_reported(settings: Settings) -> None:
    alone = settings.model_copy(update={"files": Settings().files})
    level, message = await problem(alone)
    assert level is Level.WARNING
    assert message.startswith("Attachments stay at the node that receives them")


async def test_a_lease_that_is_short_for_the_database_is_reported(settings: Settings) -> None:
    cluster = settings.cluster.model_copy(update={"lease_seconds": 1e-6})
    level, message = await problem(settings.model_copy(update={"cluster": cluster}))
    assert level is Level.WARNING
    assert message.startswith("A commit has taken ")

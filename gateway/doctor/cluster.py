"""Checks of a cluster: its nodes, whether they reach each other, and whether its lease suits its database."""

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from ipaddress import ip_address

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from config import FileSharing, Settings
from gateway import __version__
from gateway.cluster.identity import shared_digest
from gateway.contract import Caller
from gateway.database.lease import Holder
from gateway.database.postgres import PostgresConnection, connection_options
from gateway.doctor.database import clock_skew, commit_times
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.errors import CannotStart
from gateway.http.forwarding import CALLER, FORWARDED, encode_caller
from gateway.text.plain import count, took

_ABOUT = "cluster"
_DEADLINE = 5.0
_MAX_CLOCK_SKEW = 5.0
_MAX_COMMIT_PART = 0.1
"""A commit that takes a larger part of the lease lets little time to try again."""
_NODES = (
    "SELECT name, address, holder, version, config, labels, "
    "extract(epoch FROM clock_timestamp() - renewed_at)::float8, lease_ms / 1000.0::float8 FROM node ORDER BY joined_at"
)


class _Node(Struct, frozen=True, kw_only=True):
    name: str
    address: str
    host: str
    """The name of its machine."""
    version: str
    config: str
    labels: str
    silent: float
    lease: float


async def check_cluster(settings: Settings) -> list[Finding]:
    """Check the cluster that a gateway with these settings belongs to, whether it runs or not."""
    if not settings.cluster.enabled:
        return []
    try:
        nodes, slowest, skew = await asyncio.to_thread(_read, settings)
    except CannotStart:
        return []  # As below.
    except Exception:  # noqa: BLE001 - `check_database` reports what is wrong with the database.
        return []
    live = [node for node in nodes if node.silent <= node.lease]
    findings = list(_check_nodes(settings, nodes, live))
    findings += _check_settings(settings, slowest, skew)
    reached = await asyncio.gather(*(_reach(node, settings) for node in live if _is_reachable(node)))
    return [*findings, *reached]


def _read(settings: Settings) -> tuple[list[_Node], float, float]:
    """Return the nodes, the time of the slowest of a few commits, and the difference of the clocks."""
    with PostgresConnection(settings.storage.url, **connection_options(settings.storage)) as connection:
        rows = connection.execute(_NODES).fetchall()
        nodes = [
            _Node(
                name=name,
                address=address,
                host=msgspec.json.decode(holder, type=Holder).host,
                version=version,
                config=config,
                labels=labels,
                silent=silent,
                lease=lease,
            )
            for name, address, holder, version, config, labels, silent, lease in rows
        ]
        return nodes, max(commit_times(connection)), clock_skew(connection)


def _check_nodes(settings: Settings, nodes: Sequence[_Node], live: Sequence[_Node]) -> Iterator[Finding]:
    names = ", ".join(node.name for node in live)
    yield ok(_ABOUT, f"{count(len(live), 'node')} running: {names}." if live else "No node is running.")
    for node in nodes:
        if node not in live:
            message = f"The node {node.name} has been silent for {took(node.silent)}."
            yield warning(_ABOUT, message, "Look at its journal. The others take over its conversations.")
    for name, number in Counter(node.name for node in live).items():
        if number > 1:
            message = f"{number} nodes are called {name}."
            yield warning(_ABOUT, message, "Set another cluster.name on each of them, so that you can tell them apart.")
    for address, number in Counter(node.address for node in live).items():
        if number > 1 and address:
            same = " and ".join(node.name for node in live if node.address == address)
            message = f"The nodes {same} give the same address, {address}."
            yield error(_ABOUT, message, "Set cluster.address on each of them to a URL that only this node has.")
    digest = shared_digest(settings)
    for node in live:
        # Another version has other defaults and other keys, so its digest says nothing.
        if node.version == __version__ and node.config != digest:
            message = f"The settings of the node {node.name} differ from those of this gateway."
            fix = "Make the files the same, but for the names, addresses and folders of nodes. Then reload all nodes."
            yield warning(_ABOUT, message, fix)
    present = {label for node in live for label in node.labels.split()}
    needed = {repo.label for repo in settings.repos} | {agent.label for agent in settings.agents.values()}
    for label in sorted(filter(None, needed - present)) if live else ():
        message = f"No node has the label {label}, which repositories or agents need."
        yield warning("cluster.labels", message, "Start a node that has it in cluster.labels, or remove it from them.")
    machines = {node.host for node in live}
    for node in live:
        if not node.address:
            message = f"The node {node.name} is still starting."
            yield warning(
                _ABOUT, message, "If it stays so, look at its journal. It takes conversations when it is ready."
            )
        elif _is_loopback(node.address) and len(machines) > 1:
            message = f"The node {node.name} gives the address {node.address}, which other machines can't reach."
            fix = "Set http.host on this node to an address that the others reach, or to 0.0.0.0."
            yield error(_ABOUT, message, fix)


def _check_settings(settings: Settings, slowest: float, skew: float) -> Iterator[Finding]:
    if settings.files.shared is FileSharing.NONE:
        message = "Attachments stay at the node that receives them, so the owner of a conversation may not have them."
        yield warning("files", message, 'Set files.shared to "database" or "s3" on all nodes.')
    lease = settings.cluster.lease_seconds
    if slowest > lease * _MAX_COMMIT_PART:
        message = f"A commit has taken {took(slowest)}, which is much for a lease of {took(lease)}."
        yield warning("cluster.lease_seconds", message, "Raise it, or find out why the database is slow.")
    if abs(skew) > _MAX_CLOCK_SKEW:
        message = f"The clock of the database server differs by {took(abs(skew))} from the one here."
        fix = "Leases don't depend on it, but the times of messages do. Set both clocks: `timedatectl set-ntp true`."
        yield warning(_ABOUT, message, fix)


def _is_reachable(node: _Node) -> bool:
    """Return whether a request to its address can tell anything: a loopback address leads to this machine."""
    return bool(node.address) and (not _is_loopback(node.address) or node.host == socket.gethostname())


async def _reach(node: _Node, settings: Settings) -> Finding:
    """Send a node a request as another node does."""
    where = f"The node {node.name} at {node.address}"
    token = settings.http.token
    headers = {
        "Authorization": f"Bearer {'' if token is None else token.reveal()}",
        FORWARDED: "1",
        CALLER: encode_caller(Caller()),
    }
    timeout = aiohttp.ClientTimeout(total=_DEADLINE)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.get(f"{node.address}/healthz", headers=headers, allow_redirects=False) as response,
        ):
            status, is_accepted = response.status, FORWARDED in response.headers
    except (aiohttp.ClientError, OSError, ValueError) as failure:
        reason = str(failure) or "no answer"
        message = f"{where} can't be reached from here ({reason})."
        return error(_ABOUT, message, "Check http.host and cluster.address there, and the firewall in between.")
    if is_accepted:
        return ok(_ABOUT, f"{where} accepts requests of other nodes.")
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        message = f"{where} has had too many wrong tokens from here."
        return warning(_ABOUT, message, "Make http.token the same on all nodes, and try again in a minute.")
    message = f"{where} does not accept the token of this gateway."
    return error(
        _ABOUT, message, "Set the same http.token on all nodes. If a proxy is in between, it must pass on headers."
    )


def _is_loopback(address: str) -> bool:
    host = URL(address).host or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

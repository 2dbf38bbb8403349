"""`gatehouse cluster status`: shows the nodes of a cluster, and what each of them owns."""

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from config import StorageEngine
from gateway.cli.common import EXIT_FAILED, EXIT_OK, command_parser, load_settings
from gateway.cluster.status import ClusterStatus, read_status
from gateway.database.postgres import Cause, cause_of, describe, refusal, summary
from gateway.errors import CannotStart, Refused
from gateway.text import printable
from gateway.text.plain import ago, count, duration


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    parser = command_parser("cluster", "Show the state of a cluster of gateways.", config)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    status = commands.add_parser(
        "status", help="show the nodes, and what each of them owns; exits with 1 if one is down"
    )
    status.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    settings = load_settings(options.config).settings
    if settings.storage.engine is not StorageEngine.POSTGRESQL:
        raise Refused("A cluster needs PostgreSQL. Set storage.url to the database of its nodes.")
    try:
        labels = {repo.label for repo in settings.repos} | {agent.label for agent in settings.agents.values()}
        found = read_status(settings.storage, filter(None, labels))
    except CannotStart:
        raise
    except Exception as error:
        name = describe(settings.storage.url)
        match cause_of(error):
            case Cause.CALLER:
                raise
            case Cause.FORBIDDEN:
                raise refusal(name, error) from error
            case Cause.WRONG_SCHEMA:
                raise Refused(f"The database {name} has no cluster yet. Start a node first.") from error
            case _:
                raise Refused(f"The database {name} can't be reached ({summary(error)}).") from error
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        print("\n".join(render(found, datetime.now(UTC))))
    return EXIT_OK if found.is_healthy else EXIT_FAILED


def render(status: ClusterStatus, now: datetime) -> Iterator[str]:
    """Yield the lines that people read."""
    if not status.nodes:
        yield "No node is running."
    for node in status.nodes:
        posts = f", receives for {', '.join(node.posts)}" if node.posts else ""
        labels = f", labels {', '.join(node.labels)}" if node.labels else ""
        yield (
            f"{printable(node.name)}: {node.state}, {count(node.shards, 'shard')}{posts}{labels}, "
            f"version {node.version}, up for {duration(now - node.joined_at)}, "
            f"{printable(node.address) or 'no address yet'}"
        )
        if node.state == "silent":
            silent = duration(timedelta(seconds=node.silent_seconds))
            yield f"  It has been silent for {silent}. Other nodes take over its conversations."
        if node.schema < status.schema:
            yield f"  It is a version behind: it knows schema {node.schema}, and the database has {status.schema}."
        if node.has_other_settings:
            yield "  Its settings differ from those of the other nodes. Compare their configuration files."
    if len({node.version for node in status.nodes}) > 1:
        yield "The nodes have different versions. Update them one after the other, until all have the same."
    if status.free_shards:
        yield f"{count(status.free_shards, 'shard')} of {status.shards} have no owner: their messages wait."
    if status.free_posts:
        yield f"No node receives for {', '.join(status.free_posts)}."
    for label in status.absent_labels:
        yield f"No node has the label {label}. Start one that has it, or conversations that need it can't go on."
    oldest = f", the oldest for {duration(timedelta(seconds=status.oldest_seconds))}" if status.waiting_messages else ""
    yield f"{count(status.waiting_messages, 'message')} waiting for the owner of their shard{oldest}."
    yield f"{count(status.open_messages, 'message')} accepted and not answered yet."
    if status.last_takeover_at is not None:
        yield f"Last takeover: {ago(status.last_takeover_at, now)}, from {printable(status.last_takeover_from)}."

"""A backup over the control socket, for the command line; it travels as the sessions do."""

from collections.abc import AsyncIterator

from gateway.admin.session_routes import stream_route
from gateway.backup.create import Backup
from gateway.contract import Route


def backup_routes(backup: Backup) -> list[Route]:
    def blocks(query: dict[str, str]) -> AsyncIterator[bytes]:
        return backup.blocks(has_secrets=query.get("secrets") == "yes")

    return [stream_route("/backup", blocks)]

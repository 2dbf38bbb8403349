"""Describes what nodes of a cluster store for each other and send to each other, and compares two descriptions.

`python -m tests.cluster.wire` records the present description in `wire.json`: after a release, or with a new schema.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gateway.access.guests import Applicant, Guest, Revoked
from gateway.access.tokens import ApiToken
from gateway.contract import Address, Caller, Inbound, Outbound, Receipt
from gateway.database.migrate import HEAD
from gateway.repos.worktrees import StoredWorkspace
from gateway.sessions import entries
from gateway.sessions.state import SessionState
from gateway.spool.rows import InboxState, OutboxState, ReminderContent, ScheduleContent
from gateway.turns.grants import Grant

RECORD = Path(__file__).with_name("wire.json")

STORED = (
    *(Inbound, Outbound, Receipt, Address, InboxState, OutboxState, ReminderContent, ScheduleContent, SessionState),
    *(Applicant, Guest, Revoked, ApiToken, Grant, StoredWorkspace, Caller),
    *sorted(
        (kind for kind in entries.Entry.__subclasses__() if kind is not entries.Unknown), key=lambda kind: kind.__name__
    ),
)
"""Also the types that these contain."""

Description = Mapping[str, Any]  # Any: JSON.
"""The fields with their types, and which of them are required, or the values of an enum. By the name of the type."""


def describe() -> dict[str, Any]:  # Any: JSON.
    _, components = msgspec.json.schema_components(STORED)
    return {name: _describe_type(schema) for name, schema in sorted(components.items())}


def breaks(before: Description, now: Description) -> Iterator[str]:
    """Yield a sentence for each thing that one of the two versions could not read of the other.

    New types and new fields with a default are fine: readers skip what they do not know.
    """
    for name, old in before.items():
        new = now.get(name, {})
        if not new:
            yield f"{name} is gone, and the version before stores it."
            continue
        for value in sorted({*old.get("values", ())} ^ {*new.get("values", ())}):
            yield f"{name} does not have the value {value} in both versions."
        for field in sorted({*old.get("required", ())} ^ {*new.get("required", ())}):
            yield f"{name}.{field} has a default in one version only."
        for field, kind in old.get("fields", {}).items():
            if new.get("fields", {}).get(field, kind) != kind:
                yield f"{name}.{field} has another type."


def _describe_type(schema: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON.
    if "enum" in schema:
        return {"values": schema["enum"]}
    kinds = {
        field: {key: value for key, value in kind.items() if key not in {"default", "description"}}
        for field, kind in schema["properties"].items()
    }
    fields = {field: msgspec.json.encode(kind, order="deterministic").decode() for field, kind in kinds.items()}
    return {"fields": fields, "required": schema.get("required", [])}


def main() -> int:
    recorded = msgspec.json.decode(RECORD.read_bytes())
    types = describe()
    broken = list(breaks(recorded["types"], types))
    if broken and recorded["schema"] == HEAD:
        sys.stderr.write("\n".join([*broken, "This needs a migration, perhaps an empty one: see ADR 53."]) + "\n")
        return 1
    RECORD.write_bytes(
        msgspec.json.format(msgspec.json.encode({"schema": HEAD, "types": types}, order="deterministic"), indent=1)
        + b"\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

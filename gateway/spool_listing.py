"""The spool as an operator sees it: what was set aside, what was not delivered, and another try for it."""

from msgspec.structs import replace

from gateway.conversation import Json
from gateway.errors import Refused
from gateway.spool import InboxRow, OutboxRow, OutboxState, Revive, Spool
from gateway.text import excerpt

__all__ = ["as_json", "revive"]

SHOWN_WIDTH = 60


async def as_json(spool: Spool) -> dict[str, Json]:
    """Tell without showing more of a message than is needed to recognise it."""
    listing, stats = await spool.listing(), await spool.stats()
    return {
        "set_aside": [_message(row) for row in listing.inbox],
        "undelivered": [_reply(row) for row in listing.outbox],
        "unreadable": list(listing.unreadable),
        "inbox": {state.value: count for state, count in stats.inbox.items()},
        "outbox": {state.value: count for state, count in stats.outbox.items()},
        "events_remembered": stats.seen,
        "file_bytes": stats.file_bytes,
    }


async def revive(spool: Spool, key: object) -> list[OutboxRow]:
    """Make replies that were given up pending again: the one with `key`, or all for None."""
    dead = [row for row in (await spool.listing()).outbox if row.state is OutboxState.DEAD]
    chosen = [row for row in dead if key is None or row.key == key]
    if key is not None and not chosen:
        raise Refused("No reply of that key was given up. `gatehouse spool` lists those that were.")
    if chosen:
        await spool.commit(*(Revive(key=row.key) for row in chosen))
    return [replace(row, state=OutboxState.PENDING) for row in chosen]


def _message(row: InboxRow) -> dict[str, Json]:
    address = row.inbound.address
    return {
        "turn": row.turn,
        "channel": address.channel,
        "chat": address.peer,
        "accepted_at": row.accepted_at.isoformat(),
        "text": excerpt(row.inbound.text, SHOWN_WIDTH),
        "reason": row.note,
    }


def _reply(row: OutboxRow) -> dict[str, Json]:
    address = row.message.address
    return {
        "key": row.key,
        "state": row.state,
        "channel": address.channel,
        "chat": address.peer,
        "created_at": row.created_at.isoformat(),
        "text": excerpt(row.message.text, SHOWN_WIDTH),
        "reason": row.reason,
    }

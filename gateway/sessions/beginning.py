"""How the transcript of a session begins."""

from datetime import datetime
from uuid import uuid4

from gateway.contract import Address
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.names import parse_key

__all__ = ["first_entries"]


def first_entries(key: str, *, epoch: int, agent: str, origin: Address, created: datetime, title: str) -> list[Entry]:
    """Return the first entries of a session that becomes the active one of its scope."""
    scope, number = parse_key(key)
    header = e.Header(
        version=e.FORMAT,
        id=str(uuid4()),
        key=key,
        scope=scope,
        number=number,
        created=created,
        agent=agent,
        origin=_origin(origin),
        epoch=epoch,
        highest_number=number,
    )
    named = [e.Title(value=title)] if title.strip() else []
    return [header, e.Activated(key=key, epoch=epoch, highest_number=number), *named]


def _origin(address: Address) -> e.Origin:
    return e.Origin(
        channel=address.channel,
        account=address.account,
        chat_id=address.peer,
        kind=address.kind.value,
        thread=address.thread,
    )

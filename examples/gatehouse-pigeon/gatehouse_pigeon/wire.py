"""Letters as messages, and messages as letters. Pure: a letter is read, or it is none."""

import json
from datetime import UTC, datetime

from gatehouse_pigeon.loft import MAX_LETTER
from gateway.contract import Address, Inbound, Outbound, PeerKind, Sender

__all__ = ["NoLetter", "read", "written"]


class NoLetter(Exception):
    """Its text says what is wrong with it."""


def read(raw: bytes, name: str, *, channel: str, account: str) -> Inbound:
    """Read a letter. Its name is its event id: the same letter, brought twice, is the same event."""
    if len(raw) > MAX_LETTER:
        raise NoLetter("it is too long")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise NoLetter("it is no JSON") from error
    match content:
        case {"from": str(sender), "text": str(text)} if sender:
            return Inbound(
                address=Address(channel=channel, account=account, kind=PeerKind.DIRECT, peer=sender),
                sender=Sender(id=sender, name=sender),
                event_id=name,
                text=text,
                sent_at=datetime.now(UTC),
                message_id=name,
            )
    raise NoLetter("it does not say who it is from, or what")


def written(message: Outbound) -> bytes:
    return json.dumps({"to": message.address.peer, "text": message.text}, ensure_ascii=False).encode()

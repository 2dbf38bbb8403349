"""Translates letters to messages, and messages to letters. Pure functions, no I/O."""

import json
from datetime import UTC, datetime

from gatehouse_pigeon.loft import MAX_LETTER_BYTES
from gateway.contract import Address, Inbound, Outbound, PeerKind, Sender


class InvalidLetter(Exception):
    """Its text is the reason."""


def read_letter(raw: bytes, name: str, *, channel: str, account: str) -> Inbound:
    """Read a letter. Its name is the event id, so the core recognises a letter that is delivered twice."""
    if len(raw) > MAX_LETTER_BYTES:
        raise InvalidLetter("it is too long")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidLetter("it is not JSON") from error
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
    raise InvalidLetter("it needs `from` and `text`")


def encode_letter(message: Outbound) -> bytes:
    return json.dumps({"to": message.address.peer, "text": message.text}, ensure_ascii=False).encode()

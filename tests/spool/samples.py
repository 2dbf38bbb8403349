"""Messages and operations to fill a spool with."""

from datetime import UTC, datetime, timedelta

from gateway.contract import (
    Address,
    Attachment,
    AttachmentKind,
    Button,
    Inbound,
    Outbound,
    OutboundKind,
    PeerKind,
    Receipt,
    Sender,
)
from gateway.spool import AddToInbox, AddToOutbox, MarkSeen

NOW = datetime(2026, 3, 1, 11, 0, 0, 123456, tzinfo=UTC)
HOUR = timedelta(hours=1)
ANN = Address(channel="loopback", kind=PeerKind.DIRECT, peer="ann", thread="7")
RECEIPT = Receipt(message_id="m1")


def inbound(text: str = "hello", event_id: str = "e1") -> Inbound:
    return Inbound(
        address=ANN,
        sender=Sender(id="ann", name="Änn\u2028", is_owner=True),
        event_id=event_id,
        text=text,
        sent_at=NOW,
        message_id="42",
        attachments=(
            Attachment(kind=AttachmentKind.IMAGE, name="a.png", media_type="image/png", size=12, ref="file-1"),
        ),
    )


def outbound(text: str = "hi") -> Outbound:
    return Outbound(
        address=ANN,
        text=text,
        kind=OutboundKind.REPLY,
        reply_to="42",
        session=3,
        buttons=(Button(label="Stop", command="/stop"),),
    )


def take(event_id: str = "e1", at: datetime = NOW) -> MarkSeen:
    return MarkSeen(channel="loopback", account="default", event_id=event_id, at=at)


def accept(turn: str = "t1", text: str = "hello", at: datetime = NOW) -> AddToInbox:
    return AddToInbox(turn=turn, inbound=inbound(text), scope="s", session="s#2", number=2, agent="main", at=at)


def send(key: str = "k1", text: str = "hi", at: datetime = NOW) -> AddToOutbox:
    return AddToOutbox(key=key, turn="t1", message=outbound(text), at=at)

"""The gateway's own answer to a message, as operations that are committed with whatever it belongs to."""

from collections.abc import Sequence
from uuid import uuid4

from gateway.commands import Answer
from gateway.contract import Inbound, Outbound
from gateway.outbound.delivery import Delivery
from gateway.spool import Operation, Send

__all__ = ["Reply"]


class Reply:
    """`settles` says what becomes of the message itself: it is part of the same commit."""

    def __init__(self, delivery: Delivery, inbound: Inbound, settles: Operation) -> None:
        self._delivery = delivery
        self._inbound = inbound
        self._settles = settles
        self.parts: list[Send] = []
        """What is to be posted once the operations are committed."""

    def operations(self, answer: Answer) -> Sequence[Operation]:
        notice = Outbound(
            address=self._inbound.address,
            text=answer.text,
            reply_to=self._inbound.message_id,
            buttons=answer.buttons,
        )
        said = (notice, *answer.notices)
        self.parts = [part for each in said for part in self._delivery.compose(each, key=f"notice-{uuid4().hex}")]
        return [self._settles, *answer.also, *self.parts]

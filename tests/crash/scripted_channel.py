"""A third-party channel that talks to the fake platform of the tests over a Unix socket."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.contract import (
    Address,
    Channel,
    ChannelContext,
    Deliver,
    Inbound,
    Outbound,
    PeerKind,
    Receipt,
    Sender,
    TextLimit,
)
from gateway.errors import Transient, Undeliverable
from tests.crash.daemon_spec import CHANNEL
from tests.crash.kill_points import reach

TEXT_LIMIT = 400
RETRY_DELAY = 0.02
"""Seconds until an event that the gateway could not take is delivered again."""


def open_channel(context: ChannelContext) -> Channel:
    options = context.settings.options
    return FLAVOURS[str(options["flavour"])](context, Path(str(options["socket"])))


class Plain:
    """A channel that can only send. The gateway repeats and marks messages if their outcome is unknown."""

    name = CHANNEL
    account = "default"
    text_limit = TextLimit(size=TEXT_LIMIT)
    max_buttons = 2

    def __init__(self, context: ChannelContext, path: Path) -> None:
        self._context = context
        self._path = path

    async def run(self, deliver: Deliver) -> None:
        reader, writer = await self._open({"op": "events"})
        try:
            self._context.pulse.up()
            while line := await reader.readline():
                event = json.loads(line)
                await _deliver_until_taken(deliver, _inbound(event))
                reach("acknowledge before")
                writer.write(line)
                await writer.drain()
                reach("acknowledge after")
            raise Transient("the platform has closed the connection")
        finally:
            writer.close()

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        answer = await self._ask(
            op="send",
            key=key,
            chat=message.address.peer,
            text=message.text,
            reply_to=message.reply_to,
            kind=message.kind,
            is_failure=message.is_failure,
            buttons=[button.command for button in message.buttons],
        )
        return Receipt(message_id=answer["id"])

    async def _ask(self, **request: Any) -> Any:  # noqa: ANN401 - JSON is of any shape
        op = request["op"]
        reach(f"{op} before")
        reader, writer = await self._open(request)
        try:
            line = await reader.readline()
        except OSError:
            line = b""
        finally:
            writer.close()
        reach(f"{op} after")
        if not line:
            raise Transient("the platform's response was lost", may_have_arrived=True)
        answer = json.loads(line)
        if "retry_after" in answer:
            raise Transient("too fast", retry_after=answer["retry_after"])
        if "refused" in answer:
            raise Undeliverable(answer["refused"])
        return answer

    async def _open(self, request: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:  # noqa: ANN401 - as above
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
        except OSError as trouble:
            raise Transient(f"the platform cannot be reached: {trouble}") from trouble
        writer.write(json.dumps(request).encode() + b"\n")
        return reader, writer


class Editing(Plain):
    edit_pace = 0.0

    async def edit(self, receipt: Receipt, message: Outbound) -> None:
        await self._ask(
            op="edit",
            id=receipt.message_id,
            text=message.text,
            kind=message.kind,
            is_failure=message.is_failure,
        )


class Dropping(Plain):
    repeats_dropped_for = 300.0


FLAVOURS = {"plain": Plain, "editing": Editing, "dropping": Dropping}


async def _deliver_until_taken(deliver: Deliver, inbound: Inbound) -> None:
    while True:
        try:
            await deliver(inbound)
        except Transient:
            await asyncio.sleep(RETRY_DELAY)
        else:
            return


def _inbound(event: Any) -> Inbound:  # noqa: ANN401 - as above
    return Inbound(
        address=Address(channel=CHANNEL, kind=PeerKind.DIRECT, peer=event["chat"]),
        sender=Sender(id=event["chat"]),
        event_id=event["id"],
        text=event["text"],
        sent_at=datetime(2100, 1, 1, tzinfo=UTC),  # Far ahead of any clock a test sets, so it is never too old.
        message_id=event["id"],
    )

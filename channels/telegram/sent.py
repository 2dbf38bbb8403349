"""What Telegram says of a message that it was given."""

from collections.abc import Awaitable

from aiogram.exceptions import ClientDecodeError
from aiogram.types import Message

from gateway.errors import Transient

__all__ = ["number_of"]


async def number_of(sending: Awaitable[Message | None]) -> int:
    """Return the id of a message that was sent, though aiogram cannot read the rest: sending again would repeat it."""
    try:
        message = await sending
    except ClientDecodeError as unreadable:
        match unreadable.data:
            case {"ok": True, "result": {"message_id": int(number)}}:
                return number
        raise
    if message is None:
        raise Transient("Telegram does not say what it has sent.", may_have_arrived=True)
    return message.message_id

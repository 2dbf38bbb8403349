"""Albums: Telegram sends each picture of one as a message of its own, one right behind the other. Pure."""

from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import groupby

from aiogram.types import Update
from msgspec.structs import replace

from gateway.contract import Inbound

__all__ = ["Album", "Arrived", "album_of", "by_chat", "chat_of", "grouped", "growing", "merged"]

Arrived = tuple[int, Update | None]
"""An update by its id; None where it could not be read."""

Album = tuple[int, str]
"""The chat's id, and what its parts have in common."""


def grouped(arrived: Sequence[Arrived]) -> Iterator[list[Arrived]]:
    """Put together the parts of an album; whatever else has arrived stands alone. The order stays."""
    for album, members in groupby(arrived, album_of):
        if album is None:
            yield from ([alone] for alone in members)
        else:
            yield list(members)


def by_chat(arrived: Sequence[Arrived]) -> Mapping[int | None, Sequence[Sequence[Arrived]]]:
    """Give each chat its own, grouped: what others say in between cuts no album. Within a chat the order stays."""
    chats: dict[int | None, list[Arrived]] = {}
    for each in arrived:
        chats.setdefault(chat_of(each), []).append(each)
    return {chat: list(grouped(own)) for chat, own in chats.items()}


def growing(arrived: Sequence[Arrived], seen: Container[int]) -> set[int]:
    """Name the parts of albums to which the next to come may belong: they come last in their chat.

    An album whose parts were all `seen` before has stopped growing.
    """
    last = [groups[-1] for groups in by_chat(arrived).values()]
    albums = [parts for parts in last if album_of(parts[0]) and any(number not in seen for number, _ in parts)]
    return {number for parts in albums for number, _ in parts}


def merged(parts: Sequence[Inbound]) -> Inbound:
    """Make one message of an album's parts; it goes by the id of the first."""
    return replace(
        parts[0],
        text="\n".join(part.text for part in parts if part.text),
        attachments=tuple(file for part in parts for file in part.attachments),
        is_addressed=any(part.is_addressed for part in parts),
    )


def album_of(arrived: Arrived) -> Album | None:
    _, update = arrived
    if update is None or update.message is None or update.message.media_group_id is None:
        return None
    return update.message.chat.id, update.message.media_group_id


def chat_of(arrived: Arrived) -> int | None:
    """Return the chat in which an update has its place among others."""
    _, update = arrived
    if update is None:
        return None
    pressed = update.callback_query and update.callback_query.message
    message = update.message or update.edited_message or pressed
    return message.chat.id if message else None

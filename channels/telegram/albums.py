"""Albums: Telegram sends each picture of one as a message of its own, one right behind the other. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from aiogram.types import Update
from msgspec.structs import replace

from gateway.contract import Inbound

__all__ = ["Album", "Arrived", "album_at_end", "album_of", "by_chat", "chat_of", "grouped", "merged"]

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


def by_chat(arrived: Sequence[Arrived]) -> Iterable[tuple[int | None, Sequence[Sequence[Arrived]]]]:
    """Give each chat its own, grouped; within a chat the order stays."""
    chats: dict[int | None, list[list[Arrived]]] = {}
    for group in grouped(arrived):
        chats.setdefault(chat_of(group[0]), []).append(group)
    return chats.items()


def album_at_end(arrived: Sequence[Arrived]) -> list[Arrived]:
    """Return the parts of the album that comes last, to which the next to come may belong; empty where none does."""
    if not arrived or album_of(arrived[-1]) is None:
        return []
    *_, last = grouped(arrived)
    return last


def merged(parts: Sequence[Inbound]) -> Inbound:
    """Make one message of an album's parts; it goes by the id of the first."""
    return replace(
        parts[0],
        text="\n".join(part.text for part in parts),
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

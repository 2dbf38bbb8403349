"""Which pictures of a conversation a model is shown: the newest, within what an API takes in one request."""

from collections.abc import Sequence
from operator import attrgetter

from msgspec.structs import replace

from gateway.conversation import Message, Picture, UserMessage
from gateway.errors import Refused
from gateway.files.names import in_bytes
from gateway.files.sniffing import PICTURES, dimensions, media_type
from gateway.files.store import FileStore

__all__ = ["MAX_EDGE", "MAX_PICTURES", "MAX_PICTURE_BYTES", "shown"]

MAX_PICTURES = 10
MAX_PICTURE_BYTES = 3_700_000
"""Anthropic takes 5 MB of base64 an image."""
MAX_SHOWN_BYTES = 8_000_000
MAX_EDGE = 8_000

_pictures_of = attrgetter("pictures")

_UNSEEN = "You cannot see {names}: this model does not take images."
_OLDER = "no longer shown, since newer ones were sent; it can be sent again"


async def shown(messages: Sequence[Message], store: FileStore, *, sees: bool) -> Sequence[Message]:
    """Give the pictures their bytes, newest first; where one is not shown, its message says why.

    Without pictures the very same messages are returned.
    """
    if not any(map(_pictures_of, messages)):
        return messages
    viewing = _Viewing(store)
    made: list[Message] = []
    for message in reversed(messages):
        if not isinstance(message, UserMessage) or not message.pictures:
            made.append(message)
        elif sees:
            made.append(await viewing.look(message))
        else:
            made.append(_unseen(message))
    return made[::-1]


def _unseen(message: UserMessage) -> UserMessage:
    names = ", ".join(picture.name for picture in message.pictures)
    return replace(message, text=f"{message.text}\n\n[{_UNSEEN.format(names=names)}]", pictures=())


class _Viewing:
    """Counts what one request holds already."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._count = 0
        self._bytes = 0

    async def look(self, message: UserMessage) -> UserMessage:
        pictures, reasons = [], []
        for picture in message.pictures:
            try:
                pictures.append(await self._load(picture))
            except Refused as reason:
                reasons.append(f"[{picture.name} is not shown: {reason}]")
        return replace(message, text="\n\n".join([message.text, *reasons]), pictures=tuple(pictures))

    async def _load(self, picture: Picture) -> Picture:
        if self._count >= MAX_PICTURES or self._bytes >= MAX_SHOWN_BYTES:
            raise Refused(_OLDER)
        data = await self._store.read(picture.file, MAX_PICTURE_BYTES + 1)
        if len(data) > MAX_PICTURE_BYTES:
            raise Refused(f"it has more than {in_bytes(MAX_PICTURE_BYTES)}")
        kind, size = media_type(data, ""), dimensions(data)
        if kind not in PICTURES or size is None:
            raise Refused("it is damaged")
        if max(size) > MAX_EDGE or 0 in size:
            raise Refused(f"it is {size[0]} by {size[1]} pixels, and {MAX_EDGE} is the most")
        self._count += 1
        self._bytes += len(data)
        return replace(picture, media_type=kind, data=data)

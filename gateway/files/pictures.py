"""Loads the pictures of a conversation for a model that sees images."""

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.conversation import Message, UserMessage
from gateway.errors import Refused
from gateway.files.identify import PICTURES, dimensions, media_type
from gateway.files.store import FileStore
from gateway.text.plain import in_bytes

MAX_PICTURES = 10
MAX_PICTURE_BYTES = 3_700_000
"""Anthropic accepts 5 MB of base64 per image: https://docs.anthropic.com/en/docs/build-with-claude/vision"""
MAX_TOTAL_BYTES = 8_000_000
MAX_EDGE = 8_000


async def with_pictures(messages: Sequence[Message], store: FileStore, *, sees: bool) -> Sequence[Message]:
    """Load the bytes of the pictures, newest first. A message says why a picture of it is not shown.

    Not needed if no message has `pictures`.
    """
    # Providers limit a request as a whole, so the newest pictures win.
    count = total = 0
    loaded: list[Message] = []
    for message in reversed(messages):
        if not isinstance(message, UserMessage) or not message.pictures:
            loaded.append(message)
            continue
        if not sees:
            names = ", ".join(picture.name for picture in message.pictures)
            note = f"[You cannot see {names}: this model does not accept images.]"
            loaded.append(replace(message, text=f"{message.text}\n\n{note}", pictures=()))
            continue
        pictures, notes = [], []
        for picture in message.pictures:
            if count >= MAX_PICTURES or total >= MAX_TOTAL_BYTES:
                notes.append(f"[{picture.name} is not shown: newer pictures took its place; it can be sent again]")
                continue
            try:
                kind, data = await _load(store, picture.file)
            except Refused as reason:
                notes.append(f"[{picture.name} is not shown: {reason}]")
                continue
            count += 1
            total += len(data)
            pictures.append(replace(picture, media_type=kind, data=data))
        loaded.append(replace(message, text="\n\n".join([message.text, *notes]), pictures=tuple(pictures)))
    return loaded[::-1]


async def _load(store: FileStore, ref: str) -> tuple[str, bytes]:
    """Return the type and bytes of a picture. Raises `Refused` if a provider would reject it."""
    data = await store.read(ref, MAX_PICTURE_BYTES + 1)
    return check_picture(data), data


def check_picture(data: bytes) -> str:
    """Return the media type of a picture. Raises `Refused` with a part of a sentence if a provider would reject it."""
    if len(data) > MAX_PICTURE_BYTES:
        raise Refused(f"it is larger than {in_bytes(MAX_PICTURE_BYTES)}")
    kind, size = media_type(data, ""), dimensions(data)
    if kind not in PICTURES or size is None:
        raise Refused("it is damaged")
    if max(size) > MAX_EDGE or 0 in size:
        raise Refused(f"it has {size[0]} by {size[1]} pixels, and the limit is {MAX_EDGE}")
    return kind

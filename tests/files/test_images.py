from pathlib import Path

import pytest

from gateway.conversation import AssistantMessage, Message, Picture, UserMessage
from gateway.files.pictures import MAX_PICTURE_BYTES, MAX_PICTURES, with_pictures
from gateway.files.store import FileStore
from tests.files.harness import chunks, opened
from tests.files.samples import png


@pytest.fixture
async def store(tmp_path: Path) -> FileStore:
    return await opened(tmp_path, budget=10**9)


async def asked(store: FileStore, name: str, content: bytes) -> UserMessage:
    kept = await store.keep("s", name, chunks(content), limit=10**8)
    return UserMessage(text="look", pictures=(Picture(name=name, file=kept.ref, media_type="image/jpeg"),))


async def seen(store: FileStore, *messages: Message) -> list[UserMessage]:
    return [message for message in await with_pictures(messages, store, sees=True) if isinstance(message, UserMessage)]


async def test_a_picture_is_loaded_with_its_real_type(store: FileStore) -> None:
    (message,) = await seen(store, await asked(store, "a.jpg", png()))
    (picture,) = message.pictures
    assert (picture.data, picture.media_type, message.text) == (png(), "image/png", "look")


async def test_a_model_without_vision_is_told_about_the_picture(store: FileStore) -> None:
    (message,) = await with_pictures([await asked(store, "a.jpg", png())], store, sees=False)
    assert isinstance(message, UserMessage)
    assert not message.pictures
    assert "You cannot see a.jpg" in message.text


async def test_the_newest_pictures_are_shown_and_older_ones_named(store: FileStore) -> None:
    asks = [await asked(store, f"{number}.png", png()) for number in range(MAX_PICTURES + 2)]
    made = await seen(store, *asks, AssistantMessage(text="ok"))
    assert [bool(message.pictures) for message in made] == [False] * 2 + [True] * MAX_PICTURES
    assert "0.png is not shown: newer pictures took its place" in made[0].text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (png() + bytes(MAX_PICTURE_BYTES), "larger than 3.7 MB"),
        (png(9_000, 10), "9000 by 10 pixels"),
        (png(0, 10), "0 by 10 pixels"),
        (png()[:12], "damaged"),
        (b"<svg/>", "damaged"),
    ],
)
async def test_a_picture_that_providers_reject_is_named_instead(store: FileStore, content: bytes, reason: str) -> None:
    (message,) = await seen(store, await asked(store, "a.png", content))
    assert not message.pictures
    assert reason in message.text


async def test_a_deleted_picture_is_named(store: FileStore) -> None:
    message = await asked(store, "a.png", png())
    await store.drop_older("s", float("inf"))
    (made,) = await seen(store, message)
    assert not made.pictures
    assert "no longer stored" in made.text

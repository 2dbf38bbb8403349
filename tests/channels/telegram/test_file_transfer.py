"""Files in both directions."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from channels.telegram.channel import TelegramChannel
from gateway.contract import (
    Attachment,
    AttachmentKind,
    Enclosure,
    FetchesFiles,
    Outbound,
    SendsFiles,
)
from gateway.errors import Transient, Undeliverable
from tests.channels.telegram.bot_api import TOKEN, FakeBotApi, refusal
from tests.channels.telegram.harness import HERE, THERE, Core, PulseRecorder, opened, running

REPORT = Enclosure(name="report.pdf", media_type="application/pdf", size=7, ref="x")
PHOTO = Enclosure(name="cat.png", media_type="image/png", size=7, ref="x")


@pytest.fixture
async def channel(api: FakeBotApi) -> AsyncIterator[TelegramChannel]:
    pulse = PulseRecorder()
    channel = opened(api, pulse)
    assert isinstance(channel, TelegramChannel)
    async with running(channel, Core().deliver, pulse):
        yield channel


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "stored"
    path.write_bytes(b"content")
    return path


def attachment(ref: str) -> Attachment:
    return Attachment(kind=AttachmentKind.FILE, name="a", media_type="text/plain", size=0, ref=ref)


async def fetched(channel: TelegramChannel, ref: str) -> bytes:
    return b"".join([chunk async for chunk in channel.fetch(attachment(ref), HERE)])


def test_the_channel_can_fetch_and_send_files(api: FakeBotApi) -> None:
    channel = opened(api, PulseRecorder())
    assert isinstance(channel, FetchesFiles)
    assert isinstance(channel, SendsFiles)


@pytest.mark.parametrize("name", ["F1", "a b", "a#b", "a?b", "a%20b", "ü"])
async def test_a_file_is_streamed_in(channel: TelegramChannel, api: FakeBotApi, name: str) -> None:
    api.files[name] = bytes(range(256)) * 1000
    assert await fetched(channel, name) == api.files[name]


async def test_a_file_that_bots_cannot_download_is_undeliverable(channel: TelegramChannel) -> None:
    with pytest.raises(Undeliverable, match="file is too big"):
        await fetched(channel, "huge")


@pytest.mark.parametrize(("status", "reaction"), [(404, Undeliverable), (500, Transient), (429, Transient)])
async def test_a_failed_download_raises_the_right_error_without_the_token(
    channel: TelegramChannel, api: FakeBotApi, status: int, reaction: type[Exception]
) -> None:
    api.files["F1"] = b"x"
    api.scripted["file"].append((status, {}))
    with pytest.raises(reaction) as caught:
        await fetched(channel, "F1")
    assert TOKEN not in f"{caught.value!r}{caught.value.__cause__!r}"


async def test_fetching_before_the_channel_runs_is_transient(api: FakeBotApi) -> None:
    channel = opened(api, PulseRecorder())
    assert isinstance(channel, TelegramChannel)
    with pytest.raises(Transient):
        await fetched(channel, "F1")


async def test_a_file_is_sent_once_as_a_document(channel: TelegramChannel, api: FakeBotApi, path: Path) -> None:
    message = Outbound(address=THERE, text="", reply_to="9", file=REPORT)
    first = await channel.send_file(message, path, key="k")
    assert await channel.send_file(message, path, key="k") == first
    (sent,) = api.calls_of("sendDocument")
    assert (sent.fields["chat_id"], sent.fields["message_thread_id"]) == ("-1001", "7")
    assert sent.json("reply_parameters")["message_id"] == 9
    assert "content" in sent.fields.values()
    assert "caption" not in sent.fields


async def test_a_picture_is_sent_as_a_photo_with_its_caption(
    channel: TelegramChannel, api: FakeBotApi, path: Path
) -> None:
    await channel.send_file(Outbound(address=HERE, text="(possibly repeated)\n", file=PHOTO), path, key="k")
    assert api.calls_of("sendPhoto")[0].fields["caption"] == "(possibly repeated)"


async def test_a_picture_that_telegram_cannot_show_is_sent_as_a_document(
    channel: TelegramChannel, api: FakeBotApi, path: Path
) -> None:
    api.scripted["sendPhoto"].append(refusal(400, "Bad Request: PHOTO_INVALID_DIMENSIONS"))
    await channel.send_file(Outbound(address=HERE, text="", file=PHOTO), path, key="k")
    assert api.calls_of("sendDocument")


@pytest.mark.parametrize(
    ("media_type", "field"), [("audio/ogg", "voice"), ("audio/mpeg", "audio"), ("audio/mp4", "audio")]
)
async def test_a_recording_is_sent_as_one(
    channel: TelegramChannel, api: FakeBotApi, path: Path, media_type: str, field: str
) -> None:
    recording = Enclosure(name="speech", media_type=media_type, size=7, ref="x")
    await channel.send_file(Outbound(address=HERE, text="", file=recording), path, key="k")
    assert api.calls_of(f"send{field.capitalize()}")[0].fields[field] == "content"
    assert not api.calls_of("sendDocument")


async def test_a_person_who_takes_no_voice_messages_gets_a_document(
    channel: TelegramChannel, api: FakeBotApi, path: Path
) -> None:
    api.scripted["sendVoice"].append(refusal(400, "Bad Request: VOICE_MESSAGES_FORBIDDEN"))
    voice = Enclosure(name="speech.ogg", media_type="audio/ogg", size=7, ref="x")
    await channel.send_file(Outbound(address=HERE, text="", file=voice), path, key="k")
    assert api.calls_of("sendDocument")


async def test_a_file_that_telegram_rejects_is_undeliverable(
    channel: TelegramChannel, api: FakeBotApi, path: Path
) -> None:
    """A proxy in front of a Bot API server answers with a page of HTML."""
    too_large = refusal(413, "Request Entity Too Large")
    api.scripted["sendDocument"] += [too_large, (413, "<html>413 Request Entity Too Large</html>")]
    for _ in range(2):
        with pytest.raises(Undeliverable, match="too large"):
            await channel.send_file(Outbound(address=HERE, text="", file=REPORT), path, key="k")


async def test_a_stored_file_that_is_gone_is_undeliverable(
    channel: TelegramChannel, api: FakeBotApi, tmp_path: Path
) -> None:
    with pytest.raises(Undeliverable, match="no longer stored"):
        await channel.send_file(Outbound(address=HERE, text="", file=PHOTO), tmp_path / "gone", key="k")
    assert not api.calls_of("sendPhoto")


async def test_a_stored_file_that_cannot_be_read_is_not_taken_for_a_lost_connection(
    channel: TelegramChannel, api: FakeBotApi, tmp_path: Path
) -> None:
    with pytest.raises(Transient, match="file can't be read") as unreadable:
        await channel.send_file(Outbound(address=HERE, text="", file=PHOTO), tmp_path, key="k")
    assert not unreadable.value.may_have_arrived
    assert not api.calls_of("sendPhoto")


async def test_a_file_follows_a_group_that_became_a_supergroup(
    channel: TelegramChannel, api: FakeBotApi, path: Path
) -> None:
    api.scripted["sendDocument"].append(refusal(400, "Bad Request: group chat was upgraded", migrate_to_chat_id=-1009))
    sent = await channel.send_file(Outbound(address=replace(THERE, thread=None), text="", file=REPORT), path, key="k")
    assert sent.message_id.startswith("-1009:")


@pytest.mark.parametrize(("method", "file"), [("sendDocument", REPORT), ("sendPhoto", PHOTO)])
async def test_a_file_whose_response_cannot_be_parsed_counts_as_sent(
    channel: TelegramChannel, api: FakeBotApi, path: Path, method: str, file: Enclosure
) -> None:
    api.scripted[method].append((200, {"ok": True, "result": {"message_id": 5, "chat": "new kind"}}))
    receipt = await channel.send_file(Outbound(address=HERE, text="", file=file), path, key="k1")
    assert receipt.message_id == "42:5"

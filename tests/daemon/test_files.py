"""Files that come with messages and go with answers, through the whole gateway."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from msgspec import structs

from channels.loopback import Heard, LoopbackChannel
from config import Settings
from gateway.agent.models import ModelInfo
from gateway.agent.protocol import Chunk, Prompt, TextDelta
from gateway.contract import Attachment, AttachmentKind
from gateway.conversation import ToolCall, UserMessage
from gateway.daemon import Daemon
from gateway.errors import AuthRejected, ProviderFailed
from gateway.files.download import MAX_PARALLEL
from gateway.sessions import visible_text
from gateway.sessions.entries import SentFile, User
from tests.agent.scripted import ScriptedProvider
from tests.daemon.harness import DAEMON_TIMEOUT, gateway, settings, transcript_entries, workspace
from tests.files.harness import transcription_server
from tests.files.samples import PHOTO, offered, png

OK: Sequence[Chunk] = [TextDelta(text="ok")]
SEES = ModelInfo(name="eyes", sees_images=True)
BLIND = ModelInfo(name="ears", sees_images=False)


def using(provider: ScriptedProvider, info: ModelInfo = SEES) -> Callable[[Daemon], None]:
    return lambda daemon: daemon.agents.replace("main", lambda main: replace(main, provider=provider, info=info))


def last_asked(provider: ScriptedProvider) -> UserMessage:
    asked = [message for message in provider.prompts[-1].messages if isinstance(message, UserMessage)]
    return asked[-1]


def users(folder: Path) -> list[User]:
    return [entry for entry in transcript_entries(folder) if isinstance(entry, User)]


async def asked_about(
    folder: Path, *files: Attachment, content: dict[str, bytes], configured: Settings | None = None, text: str = "look"
) -> UserMessage:
    """Send a message with files, and return the request to the model."""
    provider = ScriptedProvider(OK)
    async with gateway(configured or settings(folder), using(provider)) as (_, chat):
        chat.files.update(content)
        await chat.say(text, attachments=files)
        await chat.hear_message()
    return last_asked(provider)


async def test_an_image_is_shown_to_a_vision_model(tmp_path: Path) -> None:
    asked = await asked_about(tmp_path, PHOTO, content={"photo": png()})
    (picture,) = asked.pictures
    assert (picture.data, picture.media_type) == (png(), "image/png")
    assert asked.text.startswith("look\n\n[image: cat.jpg, image/png, ")


async def test_a_model_without_vision_gets_a_sentence_about_the_image(tmp_path: Path) -> None:
    provider = ScriptedProvider(OK)
    async with gateway(settings(tmp_path), using(provider, BLIND)) as (_, chat):
        chat.files["photo"] = png()
        await chat.say("look", attachments=[PHOTO])
        await chat.hear_message()
    assert not last_asked(provider).pictures
    assert "You cannot see cat.jpg" in last_asked(provider).text


async def test_an_image_is_shown_in_later_turns_and_after_a_restart(tmp_path: Path) -> None:
    await asked_about(tmp_path, PHOTO, content={"photo": png()})
    provider = ScriptedProvider(OK)
    async with gateway(settings(tmp_path), using(provider)) as (_, chat):
        await chat.say("what colour is it?")
        await chat.hear_message()
    first = provider.prompts[-1].messages[0]
    assert isinstance(first, UserMessage)
    assert [picture.data for picture in first.pictures] == [png()]


async def test_an_image_that_failed_its_turn_does_not_fail_the_next(tmp_path: Path) -> None:
    provider = ScriptedProvider([ProviderFailed("Could not process image.")], OK)
    async with gateway(settings(tmp_path), using(provider)) as (_, chat):
        chat.files["photo"] = png()
        await chat.say("look", attachments=[PHOTO])
        await chat.hear_message()
        await chat.say("and now?")
        assert (await chat.hear_message()).text == "ok"
    assert not any(isinstance(each, UserMessage) and each.pictures for each in provider.prompts[-1].messages)


async def test_a_text_file_is_included_in_the_message(tmp_path: Path) -> None:
    asked = await asked_about(tmp_path, offered(), content={"F": b"one\n```\ntwo"})
    assert asked.text == "look\n\n[file: notes.txt]\n````\none\n```\ntwo\n````"


def stored(folder: Path) -> list[Path]:
    return [path for path in (folder / "data/files").rglob("*") if path.is_file()]


async def test_a_long_text_file_is_named_for_the_tools(tmp_path: Path) -> None:
    few = settings(tmp_path, files={"max_text_chars": 10})
    asked = await asked_about(tmp_path, offered(), content={"F": b"x" * 11}, configured=few)
    (saved,) = stored(tmp_path)
    assert f"saved as /attachments/{saved.name}]" in asked.text
    assert saved.read_bytes() == b"x" * 11


async def test_a_zip_is_stored_and_never_unpacked(tmp_path: Path) -> None:
    bomb = offered(name="../../bomb.zip", media_type="application/zip")
    asked = await asked_about(tmp_path, bomb, content={"F": b"PK\x03\x04" + bytes(1000)})
    (saved,) = stored(tmp_path)
    assert saved.name.endswith("_.._bomb.zip")
    assert saved.stat().st_size == 1004
    assert "application/zip, 1.0 kB" in asked.text
    assert not list((tmp_path / "data").rglob("bomb.zip"))


async def test_a_file_that_only_claims_to_be_an_image_is_a_plain_file(tmp_path: Path) -> None:
    asked = await asked_about(tmp_path, PHOTO, content={"photo": b"<html>\x00"})
    assert not asked.pictures
    assert "[file: cat.jpg, application/octet-stream" in asked.text


@pytest.mark.parametrize("claimed", [2_000_000_000, 0])
async def test_a_message_with_a_file_that_is_too_large_is_answered(tmp_path: Path, claimed: int) -> None:
    small = settings(tmp_path, files={"max_bytes": 100_000})
    asked = await asked_about(
        tmp_path, offered(name="film.mkv", size=claimed), content={"F": bytes(200_000)}, configured=small
    )
    assert "[file: film.mkv" in asked.text
    assert "too large; the limit is 100 kB" in asked.text
    assert stored(tmp_path) == []


async def test_a_file_that_the_platform_lost_is_reported(tmp_path: Path) -> None:
    asked = await asked_about(tmp_path, offered(), content={}, text="")
    assert asked.text == ("[file: notes.txt; it is not available: The loopback channel does not have that file.]")


async def test_a_rejected_token_loses_the_file_but_not_the_message(tmp_path: Path) -> None:
    class Revoked(dict[str, bytes | None]):
        def __getitem__(self, name: str) -> bytes | None:
            raise AuthRejected(f"The token is not accepted any more, so there is no {name}.")

    provider = ScriptedProvider(OK)
    async with gateway(settings(tmp_path), using(provider)) as (_, chat):
        chat.files = Revoked({"F": None})
        await chat.say("look", attachments=[offered()])
        await chat.hear_message()
    assert "it is not available: its channel is not available now]" in last_asked(provider).text


async def test_a_platform_that_delivers_no_files_delays_no_other(tmp_path: Path) -> None:
    two = {"dm_policy": "open", "accounts": {"default": {}, "other": {}}}
    configured = settings(
        tmp_path, channels={"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": two}
    )
    async with gateway(configured, using(ScriptedProvider(OK))) as (daemon, chat):
        chat.files["F"] = None
        for number in range(MAX_PARALLEL):
            await chat.say("look", peer=f"peer{number}", attachments=[offered()])
        other = daemon.channels.by_identity["loopback", "other"]
        assert isinstance(other, LoopbackChannel)
        other.files["F"] = b"hello"
        await other.say("look", attachments=[offered()])
        assert (await other.hear_message()).text == "ok"
        daemon.stop()  # Stopped twice, it does not wait for the others.


async def test_an_album_is_one_message_and_files_above_the_limit_are_counted(tmp_path: Path) -> None:
    album = [structs.replace(PHOTO, ref=f"photo{number}", name=f"{number}.png") for number in range(4)]
    few = settings(tmp_path, files={"max_per_message": 3})
    content = {f"photo{number}": png(number + 1) for number in range(4)}
    asked = await asked_about(tmp_path, *album, content=content, configured=few, text="")
    assert [picture.name for picture in asked.pictures] == ["0.png", "1.png", "2.png"]
    assert asked.text.endswith("[1 more files came with this message and were ignored: 3 is the limit.]")
    (user,) = users(tmp_path)
    assert len(user.attachments) == 4


async def test_a_voice_message_without_a_transcriber_is_saved_and_named(tmp_path: Path) -> None:
    voice = offered(name="voice.ogg", media_type="audio/ogg", kind=AttachmentKind.VOICE)
    asked = await asked_about(tmp_path, voice, content={"F": b"OggS\0"}, text="")
    assert asked.text.startswith("[voice: voice.ogg, audio/ogg, 5 bytes; saved as /attachments/")


async def test_a_voice_message_is_kept_when_its_transcriber_fails(tmp_path: Path) -> None:
    deaf = settings(
        tmp_path,
        providers={"ears": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key": "k"}},
        transcription={"provider": "ears"},
    )
    voice = offered(name="voice.ogg", media_type="audio/ogg", kind=AttachmentKind.VOICE)
    asked = await asked_about(tmp_path, voice, content={"F": b"OggS\0"}, configured=deaf, text="")
    assert "it could not be transcribed: the transcription service cannot be reached]" in asked.text


async def test_files_are_deleted_with_their_session(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path), using(ScriptedProvider(OK))) as (_, chat):
        chat.files["photo"] = png()
        await chat.say("look", attachments=[PHOTO])
        await chat.hear_message()
        assert list((tmp_path / "data/files").rglob("*cat.jpg"))
        await chat.say("/new")
        await chat.hear_message()
        await chat.say("/delete 1 yes")
        await chat.hear_message()
    assert not list((tmp_path / "data/files").rglob("*cat.jpg"))


def waiting(daemon: Daemon, content: bytes | None = None) -> None:
    """Let the platform have the photo, but hand it over only with its content."""
    channel = daemon.channels.by_identity["loopback", "default"]
    assert isinstance(channel, LoopbackChannel)
    channel.files["photo"] = content


async def test_a_message_whose_files_were_not_downloaded_is_answered_after_a_restart(tmp_path: Path) -> None:
    hasty = settings(tmp_path, gateway={"data_dir": tmp_path / "data", "shutdown_timeout": 0})
    async with gateway(hasty, waiting) as (_, chat):
        await chat.say("look", attachments=[PHOTO])
    assert users(tmp_path) == []
    provider = ScriptedProvider(OK)

    def before(daemon: Daemon) -> None:
        waiting(daemon, png())
        using(provider)(daemon)

    async with gateway(settings(tmp_path), before) as (_, chat):
        assert (await chat.hear_message()).text == "ok"
    assert [picture.data for picture in last_asked(provider).pictures] == [png()]


async def test_a_stop_during_a_download_leaves_a_valid_transcript(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path), waiting) as (_, chat):
        await chat.say("look", attachments=[PHOTO])
        await chat.say("/stop")
        assert (await chat.hear_message()).text == "Stopped."
    (user,) = users(tmp_path)
    assert user.attachments[0].note == "[image: cat.jpg; it is not available: it was not downloaded]"


def sending(path: str) -> Sequence[Chunk]:
    return [ToolCall(id="c1", name="send_file", input={"path": path})]


async def heard_until_file(chat: LoopbackChannel) -> list[Heard]:
    heard: list[Heard] = []
    async with asyncio.timeout(DAEMON_TIMEOUT):
        while not heard or heard[-1].how != "file":
            heard.append(await chat.hear())
    return [each for each in heard if each.how in {"send", "file"}]


async def test_the_agent_sends_a_file_after_its_answer(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path), using(ScriptedProvider(sending("out/report.pdf"), OK))) as (_, chat):
        folder = workspace(tmp_path) / "out"
        folder.mkdir()
        (folder / "report.pdf").write_bytes(b"%PDF-1.7")
        await chat.say("make it")
        words, file = await heard_until_file(chat)
    assert words.message is not None
    assert words.message.text == "ok"
    assert file.content == b"%PDF-1.7"
    assert file.message is not None
    assert file.message.file is not None
    assert (file.message.file.name, file.message.file.media_type) == ("report.pdf", "application/pdf")
    (sent,) = [entry for entry in transcript_entries(tmp_path) if isinstance(entry, SentFile)]
    assert sent.name == "report.pdf"


@pytest.mark.parametrize("path", ["../../../../etc/passwd", "nothing", "."])
async def test_only_workspace_files_are_sent(tmp_path: Path, path: str) -> None:
    provider = ScriptedProvider(sending(path), OK)
    async with gateway(settings(tmp_path), using(provider)) as (_, chat):
        await chat.say("send it")
        assert (await chat.hear_message()).text == "ok"
    assert not [entry for entry in transcript_entries(tmp_path) if isinstance(entry, SentFile)]


async def test_a_file_that_is_too_large_for_the_chat_is_described_in_text(tmp_path: Path) -> None:
    def before(daemon: Daemon) -> None:
        using(ScriptedProvider(sending("a.txt"), OK))(daemon)
        channel = daemon.channels.by_identity["loopback", "default"]
        assert isinstance(channel, LoopbackChannel)
        channel.max_file_bytes = 3

    async with gateway(settings(tmp_path), before) as (_, chat):
        (workspace(tmp_path) / "a.txt").write_text("long")
        await chat.say("send it")
        text = (await chat.hear_message()).text
    assert text == "ok\n\n(I have a file for you, but can't send it here: a.txt, 4 bytes)"


async def test_a_file_sent_before_a_crash_is_delivered_once_with_the_answer(tmp_path: Path) -> None:
    """The model hangs after its tool has run; the next start goes on from there."""
    hasty = settings(tmp_path, gateway={"data_dir": tmp_path / "data", "shutdown_timeout": 0})
    hangs = asyncio.Event()

    class Hanging(ScriptedProvider):
        async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
            if self.prompts:
                hangs.set()
                await asyncio.Event().wait()
            async for chunk in super().stream(prompt):
                yield chunk

    async with gateway(hasty, using(Hanging(sending("a.txt")))) as (_, chat):
        path = workspace(tmp_path) / "a.txt"
        path.write_text("first")
        await chat.say("send it")
        await hangs.wait()
        path.write_text("changed since")
    async with gateway(settings(tmp_path), using(ScriptedProvider(OK))) as (_, chat):
        _, file = await heard_until_file(chat)
        assert file.content == b"first"
        await chat.say("/status")
        assert (await chat.hear_message()).file is None
    assert len([entry for entry in transcript_entries(tmp_path) if isinstance(entry, SentFile)]) == 1


async def test_a_voice_message_is_transcribed(tmp_path: Path) -> None:
    async def transcribe(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"text": "Buy milk."})

    voice = offered(name="voice.ogg", media_type="audio/ogg", kind=AttachmentKind.VOICE)
    async with transcription_server(transcribe) as url:
        listens = settings(
            tmp_path,
            providers={"ears": {"kind": "openai", "base_url": url, "api_key": "k"}},
            transcription={"provider": "ears"},
        )
        asked = await asked_about(tmp_path, voice, content={"F": b"OggS\0"}, configured=listens, text="")
    assert asked.text == "[voice: voice.ogg, transcribed:] Buy milk."
    (user,) = users(tmp_path)
    assert visible_text(user) == "[voice: “Buy milk.”]"


async def test_messages_that_are_answered_together_keep_their_files(tmp_path: Path) -> None:
    channels = {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {"busy": "collect"}}
    provider = ScriptedProvider(OK)

    def before(daemon: Daemon) -> None:
        waiting(daemon)
        using(provider)(daemon)

    async with gateway(settings(tmp_path, channels=channels), before) as (_, chat):
        chat.files["F"] = b"buy milk"
        await chat.say("look", attachments=[PHOTO])
        await chat.say("and this", attachments=[offered()])
        await chat.say("and that", attachments=[offered()])
        chat.files["photo"] = png()
        await chat.hear_message()
        await chat.hear_message()
    assert len(provider.prompts) == 2
    assert "buy milk" in last_asked(provider).text


async def test_orphaned_files_are_removed_at_start(tmp_path: Path) -> None:
    await asked_about(tmp_path, PHOTO, content={"photo": png()})
    orphan = tmp_path / "data/files/of-a-deleted-session"
    orphan.mkdir()
    (orphan / "x").write_bytes(b"x")
    async with gateway(settings(tmp_path)):
        pass
    assert not orphan.exists()
    assert len(list((tmp_path / "data/files").rglob("*cat.jpg"))) == 1


async def test_an_export_names_the_files(tmp_path: Path) -> None:
    provider = ScriptedProvider(sending("a.txt"), OK)
    async with gateway(settings(tmp_path), using(provider)) as (_, chat):
        (workspace(tmp_path) / "a.txt").write_text("x")
        chat.files["photo"] = png()
        await chat.say("look", attachments=[PHOTO])
        await heard_until_file(chat)
        await chat.say("/session export")
        text = (await chat.hear_message()).text
    assert "look\n[image: cat.jpg]" in text
    assert "[file: a.txt]" in text

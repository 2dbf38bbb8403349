"""The transcriber, against a server that speaks OpenAI's wire format."""

from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from config import Secret
from gateway.errors import Refused
from gateway.files.to_text import Transcriber
from tests.files.harness import transcription_server


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "voice"
    path.write_bytes(b"OggS...")
    return path


def transcriber(url: str) -> Transcriber:
    return Transcriber(base_url=url, api_key=Secret("sk-canary"), model="whisper-1")


async def test_a_recording_becomes_text(recording: Path) -> None:
    got: dict[str, object] = {}

    async def transcribe(request: web.Request) -> web.Response:
        form = await request.post()
        file = form["file"]
        assert isinstance(file, web.FileField)
        got.update(
            key=request.headers["Authorization"],
            model=form["model"],
            name=file.filename,
            type=file.content_type,
            content=file.file.read(),
        )
        return web.json_response({"text": "Buy milk."})

    async with transcription_server(transcribe) as url:
        assert await transcriber(url).transcribe(recording, "voice.ogg", "audio/ogg") == "Buy milk."
    assert got == {
        "key": "Bearer sk-canary",
        "model": "whisper-1",
        "name": "voice.ogg",
        "type": "audio/ogg",
        "content": b"OggS...",
    }


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda: web.json_response({"error": {"message": "bad key sk-canary"}}, status=401), "answered 401"),
        (lambda: web.Response(text="<html>"), "unreadable answer"),
        (lambda: web.json_response({"words": []}), "unreadable answer"),
        (lambda: web.Response(body=b" " * 1_500_000), "unreadable answer"),
    ],
)
async def test_a_failure_is_reported_without_the_key(
    recording: Path, answer: Callable[[], web.Response], sentence: str
) -> None:
    async def transcribe(request: web.Request) -> web.Response:
        await request.read()
        return answer()

    async with transcription_server(transcribe) as url:
        with pytest.raises(Refused, match=sentence) as caught:
            await transcriber(url).transcribe(recording, "voice.ogg", "audio/ogg")
    assert "canary" not in str(caught.value)


async def test_an_unreachable_service_is_reported(recording: Path) -> None:
    with pytest.raises(Refused, match="cannot be reached"):
        await transcriber("http://127.0.0.1:9/v1").transcribe(recording, "voice.ogg", "audio/ogg")

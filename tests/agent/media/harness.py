"""A local server that speaks OpenAI's API for pictures and recordings."""

import asyncio
import struct
import wave
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from math import pi, sin
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from config import ProviderSettings

KEY = "canary-key-0123456789"
OPUS = b"OggS\0\x02" + bytes(22) + b"OpusHead" + bytes(200)

Answer = web.Response | asyncio.Event


def drawing(width: int = 320, height: int = 200) -> bytes:
    """Return a picture that people can recognise: a gradient, as PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(
        b"\0" + b"".join(bytes((x * 255 // width, y * 255 // height, 140)) for x in range(width)) for y in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tone() -> bytes:
    """Return half a second of a tone, as WAV."""
    samples = bytes(128 + round(50 * sin(2 * pi * 440 * at / 8000)) for at in range(4000))
    file = BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(1)
        out.setframerate(8000)
        out.writeframes(samples)
    return file.getvalue()


def as_base64(picture: bytes) -> web.Response:
    return web.json_response({"created": 1, "data": [{"b64_json": b64encode(picture).decode()}]})


def as_url(url: str) -> web.Response:
    return web.json_response({"created": 1, "data": [{"url": url, "revised_prompt": "A fox, painted."}]})


def refused(status: int, message: str, code: str = "", **headers: str) -> web.Response:
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code or None}}
    return web.json_response(
        body, status=status, headers={name.replace("_", "-"): each for name, each in headers.items()}
    )


@dataclass
class MediaServer:
    """Gives `answer` to each call, or none until the event is set. `files` are what GET requests find, by path."""

    answer: Answer
    files: dict[str, web.Response] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    """The path, body and headers of each call."""
    url: str = ""
    _is_asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def called(self) -> None:
        """Wait for the first call."""
        async with asyncio.timeout(60):
            await self._is_asked.wait()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.asked.append({"path": request.path, "body": body, "headers": dict(request.headers)})
        self._is_asked.set()
        answer = self.answer if request.method == "POST" else self.files.get(request.path, web.Response(status=404))
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return web.Response(status=500)
        # A copy: a response can be sent once.
        return web.Response(body=answer.body, status=answer.status, headers=answer.headers)

    @property
    def bodies(self) -> list[Any]:
        return [call["body"] for call in self.asked]

    def table(self) -> dict[str, Any]:
        """Return the configuration table of a provider for this server."""
        return {"kind": "openai", "base_url": f"{self.url}v1", "api_key": KEY}

    def settings(self) -> ProviderSettings:
        return ProviderSettings.model_validate(self.table())


@asynccontextmanager
async def serving_media(answer: Answer) -> AsyncIterator[MediaServer]:
    media = MediaServer(answer)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", media.serve)
    async with TestServer(app) as server:
        media.url = str(server.make_url("/"))
        yield media

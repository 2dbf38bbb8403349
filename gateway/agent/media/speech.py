"""Turns text into a recording by OpenAI's `/audio/speech`: https://platform.openai.com/docs/api-reference/audio."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from config import SpeechSettings
from gateway.agent.media.endpoint import MediaEndpoint
from gateway.errors import ProviderFailed
from gateway.files.identify import HEAD, media_type

log = structlog.get_logger()

_SUFFIXES = {
    "audio/ogg": "ogg",
    "audio/mpeg": "mp3",
    "audio/aac": "aac",
    "audio/flac": "flac",
    "audio/wav": "wav",
    "audio/mp4": "m4a",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    data: bytes
    suffix: str
    """How its file name ends, by its content: some endpoints ignore the format that they are asked for."""


async def make_recording(
    endpoint: MediaEndpoint, settings: SpeechSettings, text: str, *, charge: Callable[[], None]
) -> Recording:
    """Return `text` as it is spoken. Raises `ProviderFailed` with a sentence; the log has the reason."""
    began = time.monotonic()
    body = {
        "model": endpoint.model,
        "input": text,
        "voice": settings.voice,
        "response_format": str(settings.format),
    }
    async with endpoint.limits():
        data = await endpoint.post(
            "/audio/speech", body, accept="application/octet-stream", max_bytes=settings.max_bytes, charge=charge
        )
    suffix = _SUFFIXES.get(media_type(data[:HEAD], ""))
    if suffix is None:
        log.warning("recording_invalid", model=endpoint.model, bytes=len(data))
        raise ProviderFailed(f"`{endpoint.model}` sent a response that is no recording. Try again.")
    took_ms = round((time.monotonic() - began) * 1000, 1)
    log.info("recording_made", provider=endpoint.provider, model=endpoint.model, bytes=len(data), took_ms=took_ms)
    return Recording(data=data, suffix=suffix)

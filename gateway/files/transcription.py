"""Recordings as text, by any endpoint that speaks OpenAI's `/audio/transcriptions`."""

import asyncio
from http import HTTPStatus
from pathlib import Path

import msgspec
import structlog
from aiohttp import ClientError, ClientSession, ClientTimeout, FormData

from config import Secret
from gateway.errors import Refused

__all__ = ["Transcriber"]

log = structlog.get_logger()

OPENAI = "https://api.openai.com/v1"
TIMEOUT = 120.0
MAX_ANSWER_BYTES = 1_000_000


class _Answer(msgspec.Struct):
    text: str


class Transcriber:
    """`base_url` is that of a provider, with its version, as for chat."""

    def __init__(self, *, base_url: str | None, api_key: Secret | None, model: str) -> None:
        self._url = f"{(base_url or OPENAI).rstrip('/')}/audio/transcriptions"
        self._headers = {"Authorization": f"Bearer {api_key.reveal()}"} if api_key else {}
        self._model = model

    async def transcribe(self, path: Path, name: str, media_type: str) -> str:
        """Return what is said; `Refused` with a sentence that a person may read. The log has the rest."""
        try:
            return await self._ask(path, name, media_type)
        except (ClientError, OSError) as trouble:  # A timeout is an OSError.
            log.warning("transcription_failed", reason=type(trouble).__name__)
            raise Refused("the transcription service cannot be reached") from None
        except msgspec.DecodeError as trouble:
            log.warning("transcription_failed", reason="its answer is not the JSON that was asked for")
            raise Refused("the transcription service gave no readable answer") from trouble

    async def _ask(self, path: Path, name: str, media_type: str) -> str:
        with await asyncio.to_thread(path.open, "rb") as recording:
            form = FormData({"model": self._model, "response_format": "json"})
            form.add_field("file", recording, filename=name, content_type=media_type)
            async with (
                ClientSession(timeout=ClientTimeout(total=TIMEOUT)) as client,
                client.post(self._url, data=form, headers=self._headers, allow_redirects=False) as answer,
            ):
                if answer.status != HTTPStatus.OK:
                    log.warning("transcription_failed", status=answer.status)
                    raise Refused(f"the transcription service answered {answer.status}")
                body = b""
                async for chunk in answer.content.iter_chunked(MAX_ANSWER_BYTES):
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        raise Refused("the transcription service gave no readable answer")
        return msgspec.json.decode(body, type=_Answer).text

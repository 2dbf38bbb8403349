"""Has a picture made by OpenAI's `/images/generations`: https://platform.openai.com/docs/api-reference/images/create."""

import asyncio
import binascii
import time
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
import structlog

from config import ImageSettings
from gateway.agent.media.endpoint import MediaEndpoint
from gateway.errors import ProviderFailed
from gateway.files.identify import PICTURES, dimensions, is_complete, media_type
from gateway.safe_http.client import FetchFailed, fetch, parse_url
from gateway.safe_http.json_api import call_api
from gateway.text.plain import in_bytes

log = structlog.get_logger()

_ENVELOPE_BYTES = 100_000
"""What a response has besides the picture, such as the prompt as the model has revised it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePicture:
    data: bytes
    media_type: str
    width: int
    height: int


class _Image(msgspec.Struct):
    """Models of OpenAI send the picture or its URL, and take no wish for one of them in common."""

    b64_json: str | None = None
    url: str | None = None


class _Response(msgspec.Struct):
    data: list[_Image]


async def make_picture(
    endpoint: MediaEndpoint, settings: ImageSettings, prompt: str, *, charge: Callable[[], None]
) -> MadePicture:
    """Return a whole picture. Raises `ProviderFailed` with a sentence; the log has the reason."""
    began = time.monotonic()
    wishes = {"size": settings.size, "quality": settings.quality}
    body = {"model": endpoint.model, "prompt": prompt, "n": 1, **{name: each for name, each in wishes.items() if each}}
    async with endpoint.limits():
        response = await endpoint.post(
            "/images/generations",
            body,
            accept="application/json",
            max_bytes=settings.max_bytes * 4 // 3 + _ENVELOPE_BYTES,  # Base64 takes a third more.
            charge=charge,
        )
        found = await asyncio.to_thread(_read, response, endpoint.model)
        data = found if isinstance(found, bytes) else await _download(endpoint, found, settings.max_bytes)
    if len(data) > settings.max_bytes:
        raise _too_large(endpoint.model, settings.max_bytes)
    kind, size = media_type(data, ""), dimensions(data)
    if kind not in PICTURES or size is None or 0 in size or not is_complete(data):
        log.warning("picture_invalid", model=endpoint.model, bytes=len(data))
        raise ProviderFailed(f"The picture that `{endpoint.model}` sent is damaged, or is no picture. Try again.")
    took_ms = round((time.monotonic() - began) * 1000, 1)
    log.info("picture_made", provider=endpoint.provider, model=endpoint.model, bytes=len(data), took_ms=took_ms)
    return MadePicture(data=data, media_type=kind, width=size[0], height=size[1])


def _read(response: bytes, model: str) -> bytes | str:
    """Return the picture, or its URL."""
    try:
        image = next(iter(msgspec.json.decode(response, type=_Response).data), _Image())
        if image.b64_json:
            return b64decode(image.b64_json, validate=True)
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError, RecursionError) as invalid:
        log.warning("picture_invalid", model=model, reason=type(invalid).__name__)
        raise ProviderFailed(f"`{model}` sent a response without a readable picture. Try again.") from invalid
    if image.url:
        return image.url
    raise ProviderFailed(f"`{model}` sent a response without a picture. Try again.")


async def _download(endpoint: MediaEndpoint, url: str, max_bytes: int) -> bytes:
    """Get a picture, without the API key: by its own host also from a private address, else from public ones only."""
    target = parse_url(url, endpoint.base_url)
    if endpoint.settings.base_url is not None and target.origin() == endpoint.base_url.origin():
        response = await call_api(str(target), headers={"Accept": "image/*"}, max_bytes=max_bytes, is_own=True)
        if response.status != HTTPStatus.OK:
            raise FetchFailed(f"The server of the picture answered {response.status}.")
        data, is_cut = response.body, response.is_cut
    else:
        page = await fetch(str(target), max_bytes=max_bytes)
        data, is_cut = page.body, page.is_cut
    if is_cut:
        raise _too_large(endpoint.model, max_bytes)
    return data


def _too_large(model: str, limit: int) -> ProviderFailed:
    return ProviderFailed(f"The picture that `{model}` sent is larger than {in_bytes(limit)}, so it is not used.")

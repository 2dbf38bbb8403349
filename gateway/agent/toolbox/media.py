"""The tools `generate_image` and `speak`: they send a picture or a recording along with the answer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from tempfile import TemporaryFile
from typing import BinaryIO, cast

from config import ImageSettings, ProviderSettings, SpeechSettings
from gateway.agent.toolbox.chat import send_open_file
from gateway.agent.tools import Tool, ToolContext, ToolFailed, tool
from gateway.errors import ProviderFailed, Refused
from gateway.text.plain import count

_MAX_CONCURRENT = 4
"""Calls of one agent, in all its conversations."""
_QUEUE_TIMEOUT = 30.0
_CLEANUP_TIME = 30.0
"""Seconds in which a slow disk can store the file."""
_MAX_PROMPT_CHARS = 32_000
"""What OpenAI's models accept. Others accept less, and say so."""
_NAME_WORDS, _NAME_CHARS = 6, 60
_MILLION = 1_000_000


def make_generate_image(settings: ImageSettings, provider: ProviderSettings) -> Tool:
    slots = asyncio.Semaphore(_MAX_CONCURRENT)

    @tool
    async def generate_image(context: ToolContext, prompt: str) -> str:
        """Make a picture and send it with your answer."""
        # Most turns make no picture, and need no HTTP client.
        from gateway.agent.media.endpoint import MediaEndpoint  # noqa: PLC0415 - see above.
        from gateway.agent.media.images import make_picture  # noqa: PLC0415 - see above.

        name = str(settings.provider)
        endpoint = MediaEndpoint(provider=name, settings=provider, model=settings.model, timeout=settings.timeout)
        _check_text(prompt, _MAX_PROMPT_CHARS)
        async with _paid_call(context, slots, f"{name}/{settings.model}", settings.price) as charge:
            made = await make_picture(endpoint, settings, prompt, charge=charge)
        words = " ".join(prompt.split()[:_NAME_WORDS])[:_NAME_CHARS].strip(" .,;:!?")
        file = await _send(context, made.data, f"{words}.{made.media_type.partition('/')[2]}")
        return f"The picture {file} ({made.width} by {made.height} pixels) goes to the person with your answer."

    return replace(generate_image, deadline=_QUEUE_TIMEOUT + settings.timeout + _CLEANUP_TIME)


def make_speak(settings: SpeechSettings, provider: ProviderSettings) -> Tool:
    slots = asyncio.Semaphore(_MAX_CONCURRENT)

    @tool
    async def speak(context: ToolContext, text: str) -> str:
        """Send a text as a recording with your answer."""
        # Most turns make no recording, and need no HTTP client.
        from gateway.agent.media.endpoint import MediaEndpoint  # noqa: PLC0415 - see above.
        from gateway.agent.media.speech import make_recording  # noqa: PLC0415 - see above.

        name, cost = str(settings.provider), settings.price * len(text) / _MILLION
        endpoint = MediaEndpoint(provider=name, settings=provider, model=settings.model, timeout=settings.timeout)
        _check_text(text, settings.max_chars)
        async with _paid_call(context, slots, f"{name}/{settings.model}", cost) as charge:
            made = await make_recording(endpoint, settings, text, charge=charge)
        file = await _send(context, made.data, f"speech.{made.suffix}")
        return f"The recording {file} goes to the person with your answer."

    return replace(speak, deadline=_QUEUE_TIMEOUT + settings.timeout + _CLEANUP_TIME)


def _check_text(text: str, most: int) -> None:
    if not text.strip():
        raise ToolFailed("The text is empty. Write what it should be.")
    if len(text) > most:
        raise ToolFailed(f"The text has {count(len(text), 'character')}, and {most} is the limit. Use a shorter one.")


@asynccontextmanager
async def _paid_call(
    context: ToolContext, slots: asyncio.Semaphore, model: str, cost: float
) -> AsyncIterator[Callable[[], None]]:
    """Yield the function that charges for the call. What cannot be sent or paid is not made.

    Raises `ToolFailed`, also for a `ProviderFailed` of the call.
    """
    try:
        context.check_sending()
    except Refused as reason:
        raise ToolFailed(f"Nothing was made: {reason}.") from reason
    try:
        async with asyncio.timeout(_QUEUE_TIMEOUT):
            await slots.acquire()
    except TimeoutError as late:
        raise ToolFailed("Too many of these are being made at the moment. Try again in a minute.") from late

    def charge() -> None:
        if context.budget is not None and cost:
            context.budget.charge_call(model, cost)

    try:
        if context.budget is not None:
            await context.budget.check_limits()
        yield charge
    except Refused as refusal:
        raise ToolFailed(str(refusal)) from refusal
    except ProviderFailed as failure:
        raise ToolFailed(str(failure)) from failure
    finally:
        slots.release()


async def _send(context: ToolContext, data: bytes, name: str) -> str:
    """Send the content as a file. Returns its name."""

    def write() -> BinaryIO:
        file = cast("BinaryIO", TemporaryFile())  # noqa: SIM115 - the caller closes it.
        file.write(data)
        file.flush()
        return file

    try:
        file = await asyncio.to_thread(write)
    except OSError as error:
        raise ToolFailed(f"The file could not be stored: {error.strerror or 'the disk refused'}.") from error
    with file:
        return await send_open_file(context, file.fileno(), name)

"""A bare aiogram polling bot that asks a model and replies: no sessions, no storage. It runs as a separate process."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from aiogram import Bot, Dispatcher
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.types import Message


async def main(api: str, model: str, token: str, client: str) -> None:
    """Answer until stopped. `client` says what calls the model: "sdk" or "aiohttp"."""
    bot = Bot(token, session=AiohttpSession(api=TelegramAPIServer.from_base(api)))
    dispatcher = Dispatcher()
    async with AsyncExitStack() as stack:
        ask = await (_sdk(model) if client == "sdk" else _aiohttp(model, stack))

        @dispatcher.message()
        async def answer(message: Message) -> None:
            await message.answer(await ask(message.text or ""))

        await dispatcher.start_polling(bot, handle_signals=False)


async def _sdk(model: str) -> Callable[[str], Awaitable[str]]:
    from openai import AsyncOpenAI  # noqa: PLC0415 - the other bot must not pay for it

    client = AsyncOpenAI(base_url=model, api_key="none")

    async def ask(text: str) -> str:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": text}], stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    return ask


async def _aiohttp(model: str, stack: AsyncExitStack) -> Callable[[str], Awaitable[str]]:
    from aiohttp import ClientSession  # noqa: PLC0415 - as above

    session = await stack.enter_async_context(ClientSession())

    async def ask(text: str) -> str:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True}
        async with session.post(f"{model}/chat/completions", json=body) as response:
            response.raise_for_status()
            events = [line[6:] async for line in response.content if line.startswith(b"data: {")]
        return "".join([json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events])

    return ask


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""A bare aiogram polling bot that asks a model and replies: no sessions, no storage. It runs as a separate process."""

import asyncio
import sys

from aiogram import Bot, Dispatcher
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.types import Message
from openai import AsyncOpenAI


async def main(api: str, model: str, token: str) -> None:
    bot = Bot(token, session=AiohttpSession(api=TelegramAPIServer.from_base(api)))
    client = AsyncOpenAI(base_url=model, api_key="none")
    dispatcher = Dispatcher()

    @dispatcher.message()
    async def answer(message: Message) -> None:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": message.text or ""}], stream=True
        )
        words = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        await message.answer("".join(words))

    await dispatcher.start_polling(bot, handle_signals=False)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

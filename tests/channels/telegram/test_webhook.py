"""The webhook through the whole gateway: authentication, responses, albums, and its settings."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from channels.telegram import open_channel
from config import ChannelSettings, Secret, Settings
from gateway.contract import HasRoutes, Inbound, Verdict
from gateway.daemon import Daemon
from gateway.errors import CannotStart
from tests.channels.telegram.bot_api import ADA, BOB, TOKEN, FakeBotApi, Json, album_part, text_update
from tests.channels.telegram.harness import PulseRecorder, channel_context, gateway, running, settings

PATH = "/telegram/default/webhook"
HEADER = "X-Telegram-Bot-Api-Secret-Token"


def webhook_settings(folder: Path, api: FakeBotApi) -> Settings:
    return settings(folder, api, options={"webhook_url": "http://127.0.0.1/"})


@asynccontextmanager
async def listening(configured: Settings) -> AsyncIterator[tuple[Daemon, aiohttp.ClientSession]]:
    async with gateway(configured, listen=True) as daemon, aiohttp.ClientSession(daemon.server.url) as client:
        yield daemon, client


async def call(client: aiohttp.ClientSession, secret: str | None, update: Json) -> int:
    headers = {} if secret is None else {HEADER: secret}
    async with client.post(PATH, json=update, headers=headers) as response:
        return response.status


async def test_a_webhook_call_is_handled_once_and_rejected_without_the_secret(tmp_path: Path, api: FakeBotApi) -> None:
    async with listening(webhook_settings(tmp_path, api)) as (_, client):
        await api.called("getWebhookInfo")
        assert api.webhook == f"http://127.0.0.1{PATH}"
        assert api.calls_of("setWebhook")[0].fields["drop_pending_updates"] == "false"
        for wrong in (None, "", "wrong", "\xe4", api.secret[:-1], f"{api.secret}x"):
            assert await call(client, wrong, text_update("let me in", 1)) == 401
        async with client.get(PATH, headers={HEADER: api.secret}) as response:
            assert response.status == 405
        assert await call(client, api.secret, text_update("/new One", 2)) == 200
        assert await call(client, api.secret, text_update("/new One", 2)) == 200
        assert "One" in (await api.called("sendMessage")).fields["text"]
        for nonsense in ({}, {"update_id": "x"}, {"update_id": 3, "message": {"text": 1}}):
            assert await call(client, api.secret, nonsense) == 200
        old = api.secret
    assert api.webhook == ""
    async with listening(webhook_settings(tmp_path, api)) as (_, client):
        await api.called("getWebhookInfo", times=2)
        assert await call(client, old, text_update("/new Two", 4)) == 401
        assert await call(client, api.secret, text_update("/new One", 2)) == 200
        assert await call(client, api.secret, text_update("/whoami", 5)) == 200
        assert "Ada" in (await api.called("sendMessage", times=2)).fields["text"]
    assert len(api.calls_of("sendMessage")) == 2


async def test_the_body_of_a_call_without_the_secret_is_not_read(tmp_path: Path, api: FakeBotApi) -> None:
    async with listening(webhook_settings(tmp_path, api)) as (daemon, _):
        await api.called("getWebhookInfo")
        host, port = daemon.server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {PATH} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 10\r\n\r\n".encode())
        assert b" 401 " in await reader.readline()
        writer.write(b"0123456789")
        await reader.read()
        writer.close()
        await writer.wait_closed()


async def test_during_shutdown_telegram_is_told_to_send_the_update_again(tmp_path: Path, api: FakeBotApi) -> None:
    async with listening(webhook_settings(tmp_path, api)) as (daemon, client):
        await api.called("getWebhookInfo")
        assert await call(client, api.secret, text_update("hello", 1)) == 200
        while not api.calls_of("sendMessageDraft"):
            await api.called("sendMessageDraft")
        daemon.stop()
        await asyncio.sleep(0)
        assert await call(client, api.secret, text_update("too late", 2)) == 503


async def test_pressing_a_button_of_another_user_shows_an_explanation(tmp_path: Path, api: FakeBotApi) -> None:
    async with listening(webhook_settings(tmp_path, api)) as (_, client):
        await api.called("getWebhookInfo")
        group = {"id": -7, "type": "group", "title": "Not ours"}
        message = {"message_id": 5, "date": 4_000_000_000, "chat": group}
        presses = [(ADA, "/whoami", ""), (BOB, "/session resume 1", "not for you"), (ADA, "stale", "no longer in use")]
        for number, (who, data, part) in enumerate(presses, 1):
            chat = {"id": 42, "type": "private", "first_name": "Ada"} if who is ADA else group
            query = {"id": f"q{number}", "from": who, "chat_instance": "1", "message": {**message, "chat": chat}}
            update = {"update_id": number, "callback_query": {**query, "data": data}}
            assert await call(client, api.secret, update) == 200
            released = await api.called("answerCallbackQuery", times=number)
            assert part in released.fields.get("text", "")
            assert bool(part) == ("text" in released.fields)


async def test_an_album_is_one_message_though_each_part_is_acknowledged_before_the_next(
    tmp_path: Path, api: FakeBotApi
) -> None:
    """Telegram sends the next update of a chat only after the one before was acknowledged."""
    async with listening(webhook_settings(tmp_path, api)) as (_, client):
        await api.called("getWebhookInfo")
        for number in range(1, 4):
            assert await call(client, api.secret, album_part(number)) == 200
        assert await call(client, api.secret, text_update("/whoami", 4)) == 200
        await api.called("sendMessage", times=2)
        assert await call(client, api.secret, text_update("/history", 5)) == 200
        told = (await api.called("sendMessage", times=3)).fields["text"]
        assert "look 1\nlook 2\nlook 3" in told


async def test_an_album_saved_by_webhook_is_delivered_after_a_change_to_polling(
    tmp_path: Path, api: FakeBotApi
) -> None:
    by_webhook = webhook_settings(tmp_path, api)
    async with listening(by_webhook) as (_, client):
        await api.called("getWebhookInfo")
        assert await call(client, api.secret, album_part(1)) == 200
    polling = by_webhook.channels["telegram"].model_copy(update={"options": {}})
    async with gateway(by_webhook.model_copy(update={"channels": {**by_webhook.channels, "telegram": polling}})):
        assert "look 1" in (await api.called("sendMessage")).fields["text"]


async def test_a_node_of_a_cluster_that_stops_leaves_the_webhook_to_the_others(api: FakeBotApi) -> None:
    configured = ChannelSettings(token=Secret(TOKEN), api_base=api.url, options={"webhook_url": "http://127.0.0.1"})

    async def accept(_: Inbound) -> Verdict:
        return Verdict.ACCEPTED

    async with AsyncExitStack() as stack:
        knows = []
        for number in (1, 2):
            pulse = PulseRecorder()
            channel = open_channel(replace(channel_context(configured, pulse=pulse), max_poll_seconds=1.0))
            assert isinstance(channel, HasRoutes)
            knows.append(channel.routes()[0].knows)
            await stack.enter_async_context(running(channel, accept, pulse))
            await api.called("setWebhook", times=number)
    assert api.webhook == f"http://127.0.0.1{PATH}"
    assert all(known is not None and known({HEADER: api.secret}) for known in knows)


@pytest.mark.parametrize("url", ["http://bot.example.org", "bot.example.org", "", 5])
def test_a_webhook_url_that_telegram_cannot_call_is_a_config_error(url: object) -> None:
    context = channel_context(ChannelSettings(token=Secret(TOKEN), options={"webhook_url": url}))
    with pytest.raises(CannotStart, match=r"channels\.telegram\.options\.webhook_url"):
        open_channel(context)
